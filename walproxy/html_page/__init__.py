"""Pages of HTML with charts and tables, each one file that works without a network.

    rendering    templates, and the writing of a page
    still_page   fills a template in, with the style in it, and no script
    bars         charts of stacked bars, as paths of SVG
    page         fills a template in, with the style, the script and Plotly in it
    charts       what a chart is, as Plotly's JSON; colours are slots that the page fills in, for light or dark
    units        durations, sizes, and bins of time in readable units

A report brings its own template, which extends `templates/still.html.j2` or `templates/base.html.j2`. The extras
`pipeline` and `lab` have jinja2; `page` needs plotly of `lab`; `units`, `bars` and `charts` need nothing.
"""
