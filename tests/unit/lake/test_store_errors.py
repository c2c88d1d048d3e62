"""The reason that a store gives for a refusal."""

from __future__ import annotations

import pytest

from headrace.lake.files import _reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Client error\n<Error><Code>NoSuchBucket</Code> <Message>It is not there.</Message>",
            "NoSuchBucket: It is not there",
        ),
        ("<Code>AccessDenied</Code>", "AccessDenied"),
        ("Generic S3 error: \n\nDebug source:\nHyper", "Generic S3 error"),
        ("", "OSError"),
    ],
)
def test_a_stores_answer_is_the_reason_or_the_first_line_or_the_kind(
    text: str, reason: str
) -> None:
    assert _reason(OSError(text)) == reason
