"""The bodies of requests and answers, from which `/openapi.json` is made."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

__all__ = [
    "Choice",
    "ErrorAnswer",
    "Event",
    "ExposureAnswer",
    "FeedbackAnswer",
    "FeedbackBody",
    "HealthAnswer",
    "ItemAnswer",
    "ItemsAnswer",
    "ListsAnswer",
    "MapAnswer",
    "ModelsAnswer",
    "QualityAnswer",
    "RankAnswer",
    "RankBody",
    "RecommendBody",
    "RecommendQuery",
    "ReloadAnswer",
    "ReloadBody",
    "SearchQuery",
    "SimilarItemsAnswer",
    "SimilarUsersAnswer",
    "UserAnswer",
    "UsersAnswer",
]

Whole: TypeAlias = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
Text: TypeAlias = Annotated[StrictStr, Field(max_length=4096)]
IdField: TypeAlias = Whole | Text
Ids: TypeAlias = list[IdField]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Source: TypeAlias = Literal["model", "folded", "popular"]
Value: TypeAlias = bool | Whole | Number | Text
Range: TypeAlias = Annotated[dict[Literal["gt", "gte", "lt", "lte"], Number], Field(min_length=1)]
Condition: TypeAlias = Range | Annotated[list[Value], Field(max_length=1000)] | Value
Conditions: TypeAlias = Annotated[dict[Text, Condition], Field(max_length=100)]
FilterField: TypeAlias = Annotated[
    dict[Literal["must", "must_not"], Conditions],
    Field(description="Conditions on the items' attributes: all of `must` hold, and none of `must_not`."),
]


class Choice(BaseModel):
    """A model and the length of its lists, at most the service's `max_k`; the model's own by default."""

    model: Text | None = None
    k: Annotated[int, Field(ge=1, le=2**63 - 1, description="At most the service's `max_k`.")] | None = None


class ListOptions(Choice):
    """How lists are made."""

    offset: Annotated[int, Field(ge=0, le=10_000)] = 0
    exclude: Ids = []
    diversity: Fraction = 0.0
    popularity: Fraction = 0.0
    filter_seen: bool = True
    explain: bool = False


class RecommendQuery(ListOptions):
    """One list; with `category`, of items that have one of these."""

    category: Annotated[list[Text], Field(max_length=1000)] = []

    def body(self, **more: Any) -> RecommendBody:
        """The same question as a body, with the fields of `more`."""
        return RecommendBody.model_construct(
            **self.model_dump(exclude={"category"}),
            **more,
            filter={"must": {"category": self.category}} if self.category else None,
        )


class RecommendBody(ListOptions, extra="forbid"):
    """Lists for users, or for one history; with users, the history is for those that the model does not know."""

    users: Annotated[Ids, Field(min_length=1)] | None = None
    history: Ids | None = None
    candidates: Ids | None = None
    filter: FilterField | None = None

    @cached_property
    def filter_json(self) -> str:
        """The filter as the library takes it, as text."""
        return json.dumps(
            {part: conditions for part, conditions in (self.filter or {}).items() if conditions},
            sort_keys=True,
        )


class SearchQuery(BaseModel):
    """A text to look for, and where to go on."""

    model: Text | None = None
    q: Annotated[str, Field(max_length=1000)] = ""
    cursor: Annotated[str, Field(pattern=r"^[0-9a-f]{1,12}-[0-9]{1,15}$")] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 50


class RankBody(BaseModel, extra="forbid"):
    """Items to put in order, for a user or for a history."""

    user: IdField | None = None
    history: Ids | None = None
    items: Annotated[Ids, Field(min_length=1)]
    model: Text | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Event:
    """A user met an item; `timestamp` is now if absent, and an `id` that was sent before is not counted again."""

    user: IdField
    item: IdField
    timestamp: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e12)] | None = None
    id: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None


class FeedbackBody(BaseModel, extra="forbid"):
    """Events."""

    events: Annotated[list[Event], Field(min_length=1, max_length=10_000)]


class ReloadBody(BaseModel, extra="forbid"):
    """Which model to load again; all of them without a name."""

    model: Text | None = None


# ----------------------------------------------------------------------------- answers


class _OfRun(BaseModel):
    model: str
    version: str


class ErrorAnswer(BaseModel):
    """What was wrong, and with which field."""

    error: str
    field: str | None = None


class _Scored(BaseModel):
    score: float
    rank: int


class NamedItem(BaseModel):
    """An item with its title."""

    item: IdField
    title: str | None


class Reason(NamedItem):
    """An item of the history that speaks for a recommended one, and its share in all that does."""

    share: float


class ListedItem(NamedItem, _Scored):
    """One place of a list; `reasons` if they were asked for."""

    reasons: list[Reason] | None = None


class UserList(BaseModel):
    """One list; `source` says what made it: the model, a history or new events folded in, or popularity."""

    user: IdField | None
    source: Source
    items: list[ListedItem]


class ListsAnswer(_OfRun):
    """Lists, all of one version of one model."""

    took_ms: float
    results: list[UserList]


class RankAnswer(_OfRun, UserList):
    """The items in order, and those that the model does not know."""

    took_ms: float
    unknown: list[IdField]


class SimilarItemsAnswer(_OfRun):
    """Items, best first."""

    items: list[ListedItem]


class SimilarUser(_Scored):
    """A user with a score."""

    user: IdField


class SimilarUsersAnswer(_OfRun):
    """Users, most similar first."""

    users: list[SimilarUser]


class ItemAnswer(_OfRun, NamedItem):
    """What is known about an item; `popularity_rank` is 1 for the most popular one."""

    attributes: dict[str, bool | int | float | str | list[str] | None]
    interactions: int
    popularity_rank: int


class CountedUser(BaseModel):
    """A user, and how many items the run knows of this user."""

    user: IdField
    interactions: int


class UserAnswer(_OfRun, CountedUser):
    """What is known about a user."""

    source: Source
    new_events: int
    history: list[NamedItem]


class ItemsAnswer(_OfRun):
    """Items whose id or title contains a text; `cursor` continues the search."""

    items: list[NamedItem]
    cursor: str | None


class UsersAnswer(_OfRun):
    """Users of the run whose id contains a text; `cursor` continues the search."""

    users: list[CountedUser]
    cursor: str | None


class ExposureAnswer(_OfRun):
    """In how many of the first `k` places of the users' lists an item is; `of_lists` are all users or a sample."""

    item: IdField
    k: int
    lists: int
    of_lists: int
    share: float


class MapAnswer(_OfRun):
    """Items on a plane: the n-th value of each list is about the n-th item.

    `x` and `y` are from 0 to 65,535 on one scale: near items have a large cosine. `variance` is the share of the
    vectors' variance along each axis. `group` is a position in `groups`, or their number for items of no group;
    `column` is the attribute that the groups are values of. Of more than 100,000 items (`total`), the most popular.
    """

    total: int
    variance: list[float]
    items: list[IdField]
    titles: list[str | None] | None
    x: list[int]
    y: list[int]
    popularity: list[int]
    column: str | None
    groups: list[str]
    group: list[int] | None


class Curve(BaseModel):
    """A metric at each list length, of the model and of ranking by popularity."""

    metric: str
    ks: list[int]
    model: list[float]
    popularity: list[float]


class Slice(BaseModel):
    """A group of users or of interactions, its size, and recall in it."""

    name: str
    size: int
    model: float
    popularity: float


class QualityAnswer(_OfRun):
    """How good the lists are.

    `metrics` were stored with the run. The rest is measured by the service on the items held back from the run (its
    test part), over `users` of the `of_users` who have any; without such items these lists are empty. `by_activity`
    has the users in groups by their train interactions, `by_popularity` the held-back interactions in groups by the
    rank of their item.
    """

    k: int
    metrics: dict[str, float]
    users: int
    of_users: int
    curves: list[Curve]
    by_activity: list[Slice]
    by_popularity: list[Slice]


class FeedbackAnswer(BaseModel):
    """How many events are in the log now that were not before, and how many of them are about unknown items."""

    accepted: int
    repeated: int
    unknown_items: int


class OneModel(_OfRun):
    """A run that is served."""

    default: bool
    loaded_at: float
    users: int
    items: int
    dim: int
    k: int
    loss: str
    backbone: str
    attributes: list[str]
    metrics: dict[str, float]
    events: int
    users_with_events: int
    unknown_items: int
    reload_error: str | None


class ModelsAnswer(BaseModel):
    """The runs that are served."""

    models: list[OneModel]


class ReloadAnswer(BaseModel):
    """What is served now."""

    reloaded: list[dict[str, str]]


class HealthAnswer(BaseModel):
    """Whether the service can answer; a run that could not be reloaded is named with the reason."""

    status: Literal["ok", "ready"]
    models: dict[str, str]
    reload_errors: dict[str, str]
