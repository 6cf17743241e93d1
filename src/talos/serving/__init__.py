"""Recommendations over HTTP: `talos serve` (extra `serve`).

- `settings`: what the service may do, and limits.
- `schemas`: the bodies of requests and answers.
- `feedback`: the log of events, a SQLite file.
- `runs`: the loaded runs, users with new events, and reloading.
- `ranking`: requests that arrive together are ranked together, in one thread.
- `guard`: limits, keys and the access log, before a body is parsed.
- `metrics`: counters of all workers, by prometheus_client.
- `insights`: a map of the items, shares of lists and metrics, for the page.
- `service`: what endpoints share; `endpoints`: the endpoints, by what they are about; `page`: HTML, CSS and JavaScript.
- `app`: all of it as one application; `server`: the processes.
"""
