"""A whole pipeline from a program: a source, sinks, and the program's own code on the changes.

    from headrace.pipeline import Kafka, Files, pipeline

    async with pipeline(source="postgresql://app@db/shop", sinks=[Kafka("broker:9092")]) as p:
        async for transaction in p.follow("orders"):
            ...                       # its events are applied when the next one is requested

It runs `headrace up` as a child: the same services as in an installation, with a nats-server unless
one is named. They end with the program, however that ends, and continue where they were at the next
start.

Any program may import it. It never delivers a change itself: the services do.
"""

from headrace.pipeline.run import Pipeline, PipelineError, pipeline
from headrace.pipeline.sinks import (
    Files,
    Kafka,
    OpenSearch,
    OwnSink,
    RabbitQueues,
    RabbitStreams,
    SinkKeys,
    Valkey,
    Webhook,
)

__all__ = [
    "Files",
    "Kafka",
    "OpenSearch",
    "OwnSink",
    "Pipeline",
    "PipelineError",
    "RabbitQueues",
    "RabbitStreams",
    "SinkKeys",
    "Valkey",
    "Webhook",
    "pipeline",
]
