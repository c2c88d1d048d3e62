"""Following the change stream from Python: decoded events, exactly once, with gaps reported.

    subscription = Subscription(durable="billing", filters=("cdc.users.*",))
    async with follow(client, subscription, store) as consumer:
        async for event in consumer:
            ...                       # apply event.data
            await consumer.done(event)

`done` stores the watermark and acknowledges the message. If the data itself is in a database, store
the watermark in the same transaction, with your own `WatermarkStore`: then a crash at any point
neither repeats nor loses anything. `Transactions` reads by whole transactions.

Any program may import it. It never publishes a message, never changes a stream, and never skips a
lost message silently.
"""

from headrace.consumer.event import Event
from headrace.consumer.follow import Consumer, follow
from headrace.consumer.pull import ReaderTakenOverError, RetentionGapError, StreamMissingError
from headrace.consumer.subscription import Start, Subscription
from headrace.consumer.transactions import MixedError, Transaction, Transactions
from headrace.consumer.watermark import (
    FileWatermarks,
    MemoryWatermarks,
    Watermark,
    WatermarkError,
    WatermarkStore,
)
from headrace.lsn import Position

__all__ = [
    "Consumer",
    "Event",
    "FileWatermarks",
    "MemoryWatermarks",
    "MixedError",
    "Position",
    "ReaderTakenOverError",
    "RetentionGapError",
    "Start",
    "StreamMissingError",
    "Subscription",
    "Transaction",
    "Transactions",
    "Watermark",
    "WatermarkError",
    "WatermarkStore",
    "follow",
]
