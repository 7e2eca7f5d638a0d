"""The page at `/` of both programs: read only, without any external resource.

live    the stream of server-sent events that the page draws
page    the routes: the page, its files, and the stream

`static/` has what is served: a page for each program, its style, and modules of JavaScript
(docs/design/adr/0055-page.md).
"""
