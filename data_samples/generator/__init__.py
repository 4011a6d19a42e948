"""Write the sample corpus: vocabularies and templates (TOML), the grammar, the mix of pages."""
