"""Pages of HTML with charts and tables, each one file that works without a network.

    pages     fills a template in, with its style and its scripts, and writes the page
    charts    what a chart is; durations, sizes, and bins of time in readable units

A report brings its own template, which extends `templates/base.html.j2`. Plotly draws its charts with the macros of
`macros.html.j2`; those of `still_macros.html.j2` are SVG without a script. The extras `pipeline` and `lab` have jinja2.
"""
