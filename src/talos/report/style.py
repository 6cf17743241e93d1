"""The look of a page: one column on a phone, several on a desktop, light and dark.

Lines and text keep a contrast of 3:1 and 4.5:1 against what is behind them, in both modes; a test checks it. The
colours of series follow Okabe and Ito, a little darker or lighter where a background asks for it.
"""

from __future__ import annotations

__all__ = ["DARK", "LIGHT", "STYLE"]

LIGHT = {
    "back": "#ffffff",
    "card": "#f6f7f9",
    "text": "#1b1f24",
    "muted": "#57606a",
    "rule": "#d6dae0",
    "c0": "#0072b2",
    "c1": "#c85200",
    "c2": "#00805d",
    "c3": "#b0578f",
    "c4": "#946200",
    "c5": "#2f7fae",
    "c6": "#555555",
}
DARK = {
    "back": "#14171b",
    "card": "#1c2026",
    "text": "#e8eaed",
    "muted": "#a5adb8",
    "rule": "#3a414b",
    "c0": "#56b4e9",
    "c1": "#f08a3c",
    "c2": "#34c79d",
    "c3": "#e0a0c8",
    "c4": "#f0e442",
    "c5": "#8fb8ff",
    "c6": "#b8bec7",
}


def _variables(values: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in values.items())


_SERIES = "".join(f".c{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}" for i in range(7))

STYLE = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:1180px;padding:16px;background:var(--back);color:var(--text);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
h1{{font-size:1.5rem;margin:.4rem 0 .2rem;overflow-wrap:anywhere}}
h2{{font-size:1.2rem;margin:2rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--rule)}}
h3{{font-size:1rem;margin:0 0 .4rem}}
header p,footer p,section>p,figcaption{{color:var(--muted);margin:.2rem 0}}
figcaption{{font-size:.85rem}}
.figures{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:16px;align-items:start}}
figure,.card{{margin:0;padding:12px;background:var(--card);border-radius:8px;min-width:0}}
figure>svg{{display:block;width:100%;height:auto}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:0 0 .3rem;padding:0;font-size:.85rem}}
.legend li{{display:flex;align-items:center;gap:.35rem}}
.legend svg{{width:22px;height:10px;overflow:visible}}
text{{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--muted)}}
text.name{{fill:var(--text)}}
.grid{{stroke:var(--rule);stroke-width:.7}}
.axis{{stroke:var(--muted);stroke-width:1}}
.mark{{stroke:var(--text);stroke-width:1;stroke-dasharray:3 3}}
.equal{{stroke:var(--muted);stroke-width:1;fill:none}}
.line{{fill:none;stroke-width:2;stroke-linejoin:round}}
.area{{opacity:.16}}
.point{{fill-opacity:.5}}
.ring{{fill:none;stroke-width:1.2}}
{_SERIES}
details{{margin-top:.5rem;font-size:.85rem}}
summary{{cursor:pointer;color:var(--muted);padding:.3rem 0}}
.wide{{overflow-x:auto;max-width:100%;margin-top:.4rem;--here:var(--back);background:
linear-gradient(to right,var(--here) 40%,transparent) left/36px 100% no-repeat local,
linear-gradient(to left,var(--here) 40%,transparent) right/36px 100% no-repeat local,
linear-gradient(to right,var(--rule),transparent) left/14px 100% no-repeat scroll,
linear-gradient(to left,var(--rule),transparent) right/14px 100% no-repeat scroll}}
figure .wide{{--here:var(--card)}}
table{{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}}
th,td{{padding:.2rem .6rem .2rem 0;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}}
thead th{{white-space:normal;vertical-align:bottom}}
th[scope=row]{{font-weight:normal}}
.n{{text-align:right}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:1rem 0}}
.tiles div{{padding:12px;background:var(--card);border-radius:8px}}
.tiles dt{{color:var(--muted);font-size:.85rem}}
.tiles dd{{margin:0}}
.tiles strong{{font-size:1.35rem;display:block}}
.tiles span{{color:var(--muted);font-size:.85rem}}
.card ol{{margin:.3rem 0 0;padding-left:1.8rem}}
.card li{{overflow-wrap:anywhere}}
.card p{{margin:.2rem 0;color:var(--muted);font-size:.9rem;overflow-wrap:anywhere}}
.hit{{color:var(--c2);font-weight:600;white-space:nowrap}}
"""
