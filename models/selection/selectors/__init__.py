"""Select by the rules of the field's papers, each a function from `Problem` to `Solution`."""
