"""`softnpu report`: everything about one model on this machine as one page.

`work` counts operations and bytes of layers, `roofline` measures the host, `gathering` runs the model;
`drawing` and `plots` make pictures in the page's colours, `page` combines them.
"""
