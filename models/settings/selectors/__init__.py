"""Register the selectors, and define the options of those that do not maximise the objective."""
