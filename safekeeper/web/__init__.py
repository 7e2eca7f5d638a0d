"""The page at `/` of both programs: read only, without any external resource.

live    the stream of server-sent events that the page draws
page    the routes: the page, its files, and the stream

`static/` has what is served: the page, its style, and modules of JavaScript, of which one draws each program
(docs/design/adr/0055-page.md).
"""
