"""Recommendations over HTTP: `talos serve` (extra `serve`).

- `settings`: what the service may do, and limits.
- `schemas`: the bodies of requests and answers.
- `feedback`: the log of events, which is appended to and followed.
- `runs`: the loaded runs, users with new events, and reloading.
- `ranking`: requests that arrive together are ranked together, in one thread.
- `guard`: limits, keys and the access log, before anything is parsed.
- `metrics`: counters of all workers, as Prometheus reads them.
- `insights`: a map of the items, shares of lists and metrics, for the page.
- `page_files`: the page, whose HTML, CSS and JavaScript are in `page/`.
- `service`: what endpoints share; `endpoints`: the endpoints, by what they are about.
- `app`: all of it as one application; `server`: the processes.
"""
