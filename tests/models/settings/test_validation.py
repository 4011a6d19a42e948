"""Wrong settings: one line each, with key, value and what is allowed."""

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.validation import validated


def test_what_is_allowed_is_returned() -> None:
    assert validated(SelectionSettings, {"lamb": 0.25}) == SelectionSettings(lamb=0.25)


def test_every_wrong_value_has_a_line() -> None:
    with pytest.raises(SettingsError) as caught:
        validated(SelectionSettings, {"lamb": 3, "lam": 1})
    first, second = str(caught.value).splitlines()
    assert first == "lamb: input should be less than or equal to 1, received 3"
    assert second.startswith("lam: unknown setting; did you mean 'lamb'? allowed: ")
