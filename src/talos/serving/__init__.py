"""Recommendations over HTTP: `talos serve` (extra `serve`).

- `settings`: what the service may do, and limits.
- `schemas`: the bodies of requests and answers.
- `feedback`: the log of events, a SQLite file.
- `runs`: a run, loaded from a copy of its files, and the histories of users with new events.
- `batcher`: requests that arrive together are ranked together, in one thread.
- `metrics`: counters of all workers, by prometheus_client.
- `guard`: limits, keys and the access log, before a body is parsed.
- `insights`: a map of the items, shares of lists and metrics, for the page.
- `service`: what the endpoints of a worker share, and the replacement of runs.
- `endpoints`: a function for each; `page`: HTML, CSS and JavaScript.
- `app`: all of it as one application; `server`: the processes.
"""
