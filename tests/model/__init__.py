"""The life of a submission (docs/interface.md, section 9.1) as a model whose every interleaving is explored."""
