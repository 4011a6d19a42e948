"""Selection over a whole corpus at once, which need not fit into memory: it is read in parts (ours).

A *rule* is learned on a random sample: the marginal gain of every document, given what is selected. A pass over all
parts applies it, finds the threshold that fills the budget exactly, and measures what the sample got wrong; the next
rule is learned on the sample with that correction. docs/algorithm.md has the derivation.
"""
