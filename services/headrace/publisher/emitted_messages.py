"""Events of `pg_logical_emit_message`. Pure."""

from __future__ import annotations

import base64

from headrace.contract.events import Payload
from headrace.contract.subjects_and_ids import emitted_message_id, message_subject
from headrace.contract.values import Encoding
from headrace.pgoutput.messages import LogicalMessage


def payload(
    lsn: int, message: LogicalMessage, tx: Payload, source: str, encoding: Encoding
) -> Payload:
    """The event of a message, in the transaction that `tx` describes."""
    return {
        "subject": message_subject(message.prefix),
        "operation": "MESSAGE",
        "msg_id": emitted_message_id(message.lsn, message.prefix, source),
        "prefix": message.prefix,
        "content": _content(message.content, encoding),
        "source": source,
        "lsn": lsn,
        "tx": tx,
    }


def _content(content: bytes, encoding: Encoding) -> str | bytes:
    """Text if it is valid; other bytes in bytea's form."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        if encoding is Encoding.JSON:
            return base64.b64encode(content).decode()
        return content
