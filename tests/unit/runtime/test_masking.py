"""Masks of secrets: every value of four characters and more, also where it comes in pieces."""

from __future__ import annotations

import base64
import itertools
import json
from urllib.parse import quote, quote_plus

import pytest

from skyward.runtime.masking import Masks


def _pieces(masks: Masks, pieces: tuple[str, ...]) -> str:
    shown, held = "", ""
    for piece in pieces:
        now, held = masks.split(held + piece)
        shown += now
    return shown + masks.conceal(held)


def test_values_are_masked_and_short_ones_are_not() -> None:
    masks = Masks(["hunter22", "abc", ""])
    assert masks and masks.conceal("abc hunter22hunter22 x") == "abc ****** x"
    assert not Masks(["abc"]) and Masks(["abc"]).conceal("abc") == "abc"


def test_the_longest_value_is_masked_where_one_begins_another() -> None:
    assert Masks(["token", "token-of-mine"]).conceal("token-of-mine token") == "*** ***"


def test_lines_of_a_value_are_masked_each() -> None:
    assert Masks(["BEGIN KEY\nMIIabcd\n==\n"]).conceal("MIIabcd ==") == "*** =="


def test_encoded_values_are_masked() -> None:
    """Whatever stands before and after them; of base64 at most two characters at each end are shown."""
    value = 'pa/ss w"ö+rd?=99'
    masks = Masks([value])
    for shown in (quote(value), quote(value, safe=""), quote_plus(value), json.dumps(value), repr(value)):
        assert masks.conceal(f"<{shown}>").strip("<>\"'") == "***"
    assert masks.conceal(value.encode().hex()) == masks.conceal(value.encode().hex().upper()) == "***"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before, after in itertools.product(range(4), repeat=2):
            text = encode(b"u" * before + value.encode() + b"v" * after).decode()
            begin, mask, end = masks.conceal(text).partition("***")
            assert mask and len(begin) <= 6 and len(end) <= 8
    assert not set(Masks(["abcd"]).conceal("YWJjZA== 61626364")) & {"*"}  # too short for that


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, 22), 2)))
def test_no_piece_shows_a_part_of_a_value_that_follows(cuts: tuple[int, int]) -> None:
    text = "a tototoken22 to token"
    first, second = cuts
    shown = _pieces(Masks(["totoken22", "oken2"]), (text[:first], text[first:second], text[second:]))
    assert shown == "a to*** to token"
