"""The endpoints, by what they are about; each function is one."""

from talos.serving.endpoints import catalogue, lists, operation, page

__all__ = ["ROUTERS"]

ROUTERS = (lists.router, catalogue.router, operation.router, page.router)
