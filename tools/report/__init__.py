"""`softnpu report`: everything about one model on this machine as one page.

`work` counts operations and bytes of layers, `roofline` measures the host, `gathering` runs the model;
`drawing` and `plots` make pictures whose colours follow the page, `page` puts them together.
"""
