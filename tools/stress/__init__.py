"""`softnpu stress`: many client processes that compute, check, die and come back."""
