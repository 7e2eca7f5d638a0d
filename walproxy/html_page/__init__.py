"""Pages of HTML with charts and tables, each one file that works without a network.

    page     fills a template in, with the style, the script and Plotly in it
    charts   what a chart is, as Plotly's JSON; colours are slots that the page fills in, for light or dark
    units    durations, sizes, and bins of time in readable units

A report brings its own template, which extends `templates/base.html.j2`. Needs jinja2 and plotly, which come with the
extras `pipeline` and `testing`; `units` and `charts` need nothing.
"""
