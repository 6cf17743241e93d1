"""Recommendations over HTTP: `talos serve` (extra `serve`).

- `settings`: what the service may do, and limits.
- `schemas`: the bodies of requests and answers.
- `feedback`: the log of events, a SQLite file.
- `copies`: loads a run from a copy of its files; `runs`: a loaded run, with histories of users with new events;
  `book`: the runs by name, and reloading.
- `ranking`: requests that arrive together are ranked together, in one thread.
- `guard`: limits, keys and the access log, before a body is parsed.
- `metrics`: counters of all workers, by prometheus_client.
- `insights`: a map of the items, shares of lists and metrics, for the page.
- `service`: the objects that endpoints share; `endpoints`: a function for each; `page`: HTML, CSS and JavaScript.
- `app`: all of it as one application; `server`: the processes.
"""
