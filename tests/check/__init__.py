"""Wrong programs, the same programs made right, and what `softnpu check` says about them."""
