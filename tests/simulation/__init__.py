"""Headrace's services in a world of one thread, where every step can fail and every history can be
repeated.

The services are the real ones: wal-reader with its sender, publisher with its follower, assembler,
delivery, pipe, progress and gaps, and archiver. Their environment is simulated at the network:

| module | stands for |
|---|---|
| `clockwork` | the event loop, clocks and randomness; processes that are killed or asleep |
| `server`, `stream`, `batches` | nats-server: connections, core NATS, JetStream's rules and its API |
| `readers` | nats-server for readers of a stream; a mirror's world uses it (`tests.support.mirror_world`) |
| `client` | the wire below nats-py's client; nats-py's own code runs above it |
| `postgres`, `catalog` | PostgreSQL: its log, slots, walsenders, promotions, the catalog |
| `world` | one history: starts the processes, executes the plan, supervises, repairs |
| `steps` | the effects of a plan's steps |
| `plan` | the steps and their times, drawn from a seed; shrinking |
| `oracle` | the conditions of every history |
| `scripts` | the same random requests to the simulated JetStream and to nats-server |
| `defects` | fixed defects, put back: a test expects the simulation to find them |

Run `./taskw test:simulate` (HISTORIES, SEED); one history again, with its log, by
`.venv/bin/python -m tests.simulation --seed N --show`. A failing history is shrunk and printed.
"""
