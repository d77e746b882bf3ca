"""The frame of the report's page, and how it looks: wide screens have a margin with marks beside the source, narrow ones have the marks above a line."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<header><h1>{title}</h1><p>{head}</p></header>
<nav>{links}</nav>
<main>{sections}</main>
</body>
</html>
"""

CSS = """
:root { --ink: #1d2733; --soft: #5b6875; --rule: #dde3e9; --paper: #ffffff; --ground: #f4f6f8; --cause: #b3261e; --ops: #1b6e3c; --read: #a3550a; --feed: #6b4a2b; --skip: #17697a; --step: #2f4b7c; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
header, nav, main { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 18px 0 8px; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
nav { padding-top: 10px; padding-bottom: 4px; display: flex; flex-wrap: wrap; gap: 4px 16px; }
a { color: var(--step); }
section { background: var(--paper); border: 1px solid var(--rule); border-radius: 8px; padding: 18px 20px; margin: 14px 0; }
.verdict { border-left: 4px solid var(--step); padding: 2px 0 2px 14px; margin: 0 0 14px; }
.verdict strong { display: block; font-size: 16px; overflow-wrap: anywhere; }
.verdict span { color: var(--soft); }
.causes { list-style: none; padding: 0; margin: 0 0 18px; display: grid; gap: 8px; }
.causes li { border: 1px solid var(--rule); border-radius: 6px; padding: 8px 12px; overflow-wrap: anywhere; }
.causes code { display: block; white-space: pre-wrap; background: var(--ground); border-radius: 4px; padding: 3px 8px; margin: 4px 0; }
code, pre { font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 0; overflow-x: auto; background: var(--ground); border-radius: 6px; padding: 10px 12px; }
.m { font: 600 11px/1.35 system-ui, "DejaVu Sans", sans-serif; display: inline-block; padding: 1px 6px; border-radius: 9px; white-space: nowrap; border: 1px solid; background: var(--paper); }
.m.cause { color: #fff; background: var(--cause); border-color: var(--cause); }
.m.step { color: #fff; background: var(--step); border-color: var(--step); }
.m.ops { color: var(--ops); } .m.below { color: var(--soft); font-weight: 400; } .m.read { color: var(--read); } .m.feed { color: var(--feed); }
.m.skip { color: var(--skip); } .m.fall { color: var(--cause); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; margin: 0 0 12px; color: var(--soft); font-size: 13px; }
.source { border: 1px solid var(--rule); border-radius: 6px; overflow-x: auto; }
.rows { width: max-content; min-width: 100%; }
.line { display: grid; grid-template-columns: 3.2em 15em 1fr; gap: 0 10px; align-items: baseline; }
.line .n { text-align: right; color: var(--soft); font: 12px/1.55 ui-monospace, "DejaVu Sans Mono", monospace; }
.line .marks { display: flex; flex-wrap: wrap; gap: 2px 3px; }
.line code { white-space: pre; padding-right: 12px; }
.line.ops, .line.below { background: #f1f8f3; } .line.read, .line.feed { background: #fdf4ea; } .line.fall, .line.cause { background: #fdeeed; } .line.step { background: #eaf0f9; }
.note { background: #fdeeed; } .note p { display: flex; gap: 8px; align-items: baseline; margin: 0; padding: 4px 12px 6px 54px; font-size: 13px; position: sticky; left: 0; width: min(1090px, 92vw); overflow-wrap: anywhere; }
.fold summary { color: var(--soft); font-size: 12px; padding: 3px 12px; cursor: pointer; background: var(--ground); position: sticky; left: 0; }
figure { margin: 0 0 18px; } figcaption { font-weight: 600; margin-bottom: 6px; }
.track { display: grid; grid-template-columns: 130px 1fr; gap: 10px; align-items: center; margin-bottom: 4px; }
.track span { font-size: 13px; color: var(--soft); overflow-wrap: anywhere; }
.track svg { width: 100%; height: 24px; background: var(--ground); border-radius: 3px; display: block; }
.track svg rect.apart { stroke: #fff; stroke-width: 0.7px; vector-effect: non-scaling-stroke; }
.axis { position: relative; height: 18px; margin-left: 140px; font-size: 11px; color: var(--soft); }
.axis i { position: absolute; font-style: normal; border-left: 1px solid #aab4be; padding-left: 3px; white-space: nowrap; }
.k-python { fill: #7fa3cf; background: #7fa3cf; } .k-skipped { fill: #a8d5d8; background: #a8d5d8; } .k-graph { fill: #4f9d5d; background: #4f9d5d; } .k-wait { fill: #ef8a1d; background: #ef8a1d; }
.k-builder { fill: #9a6fb0; background: #9a6fb0; } .k-feed { fill: #6b4a2b; background: #6b4a2b; } .k-fallback { fill: #c62b22; background: #c62b22; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 8px; vertical-align: -1px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; min-width: 50%; }
th, td { text-align: left; padding: 4px 16px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td + td { white-space: nowrap; font-variant-numeric: tabular-nums; }
details > summary { cursor: pointer; }
@media (max-width: 760px) {
  header, nav, main { padding-left: 10px; padding-right: 10px; }
  section { padding: 14px 12px; }
  .line { grid-template-columns: 2.6em 1fr; gap: 0 8px; }
  .line .marks { grid-column: 2; grid-row: 1; padding-top: 2px; position: sticky; left: 3.2em; max-width: 76vw; } .line .marks:empty { display: none; }
  .line .n { grid-row: 1; } .line .marks:not(:empty) ~ code { grid-row: 2; grid-column: 2; } .line code { grid-column: 2; }
  .note p { padding-left: 10px; width: 86vw; }
  .track { grid-template-columns: 1fr; gap: 1px; } .axis { margin-left: 0; }
  table { font-size: 13px; } th, td { padding-right: 10px; }
}
@media print { body { background: #fff; } section { break-inside: avoid-page; } }
"""
