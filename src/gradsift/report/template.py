"""Jinja2 templates of the page, one HTML file that loads no other file. Jinja2 escapes every value."""

STYLE = """
:root { color-scheme: light dark; {{ light }} --soft: #f5f7f9; --quiet: #525b66; --link: #0a558c; }
@media (prefers-color-scheme: dark) {
  :root { {{ dark }} --soft: #1d2126; --quiet: #aab4bf; --link: #7cbcf5; }
}
@media print { :root { color-scheme: light; {{ light }} --soft: #ffffff; --quiet: #30363d; --link: #1b1f24; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5; overflow-wrap: anywhere;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, sans-serif; }
main, header, footer { max-width: 78rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.25rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.75rem 0 .6rem; }
h3 { font-size: 1rem; line-height: 1.35; margin: 1.75rem 0 .5rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
a { color: var(--link); }
.quiet, figcaption, caption, .spread, .note { color: var(--quiet); }
.notes { border-left: 3px solid var(--line1); background: var(--soft); padding: .6rem 1rem; margin: 1.25rem 0; }
.notes ul { margin: 0; padding-left: 1.1rem; }
.figures { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; padding: 1rem; border: 1px solid var(--grid); border-radius: 6px; min-width: 0; }
figure h3 { margin: 0 0 .6rem; }
figure svg { display: block; width: 100%; max-width: 31rem; height: auto; margin: 0 auto; font-family: inherit; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { font-size: .86rem; line-height: 1.45; margin-top: .75rem; }
figcaption .files { display: block; margin-top: .35rem; }
.wide { overflow-x: auto; border: 1px solid var(--grid); border-radius: 6px; }
.wide:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .6rem .75rem; font-size: .86rem; line-height: 1.45; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem; border-top: 1px solid var(--grid); }
th { font-weight: 600; }
thead th { line-height: 1.3; vertical-align: bottom; background: var(--soft); overflow-wrap: break-word; }
.summary td, .summary thead th { padding: .5rem .55rem; }
.summary tbody th { min-width: 11rem; }
.summary th, .summary td { overflow-wrap: break-word; }
.spread, .note { display: block; font-size: .78rem; line-height: 1.35; }
.swatch { display: inline-block; width: 2rem; height: .8rem; margin-right: .4rem; vertical-align: -.05rem; }
.swatch svg { display: block; width: 100%; height: 100%; }
code, pre { font-size: .92em;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 0; white-space: pre-wrap; }
.config tbody th { font-weight: 400; }
.config th { width: 30%; }
dl { margin: 0; display: grid; grid-template-columns: minmax(0, max-content) minmax(0, 1fr); gap: .1rem .9rem; }
dt { color: var(--quiet); }
dd { margin: 0; }
footer { margin-top: 3rem; padding-bottom: 2.5rem; font-size: .86rem; color: var(--quiet); }
@media screen and (max-width: 64rem) {
  table.stack, .stack tbody, .stack caption { display: block; width: auto; }
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stack tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr));
    border-top: 1px solid var(--grid); padding-bottom: .5rem; }
  .stack tbody th { grid-column: 1 / -1; background: var(--soft); border: 0; padding: .6rem .75rem;
    margin-bottom: .35rem; }
  .stack td, .summary.stack td { display: grid; grid-template-columns: 9.5rem minmax(0, 1fr); gap: .75rem;
    border: 0; padding: .25rem .75rem; }
  .stack td::before { content: attr(data-label); color: var(--quiet); }
  .stack td.whole { grid-column: 1 / -1; display: block; }
  .stack td.whole::before { content: none; }
}
@media screen and (max-width: 46rem) {
  main, header, footer { padding-left: 1rem; padding-right: 1rem; }
  header { padding-top: 1.5rem; }
  h1 { font-size: 1.4rem; }
  h2 { margin-top: 2.25rem; }
  figure { padding: .75rem .6rem; }
  .config th, .config td { display: block; width: auto; }
  .config td { border-top: 0; padding-top: 0; }
  dl { grid-template-columns: minmax(0, 1fr); }
  dd { margin-bottom: .35rem; }
}
@media print {
  @page { margin: 14mm 13mm; }
  body { font-size: 9.5pt; }
  main, header, footer { max-width: none; padding: 0; }
  a { text-decoration: none; }
  .files { display: none !important; }
  .wide { overflow: visible; border: 0; }
  figure, tr, .notes li, dl { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .figures { display: block; columns: 2; column-gap: 6mm; }
  figure { padding: 0; border: 0; margin: 0 0 7mm; }
  figcaption { font-size: 7.5pt; }
  table { font-size: 7.5pt; }
  th, td, .summary td, .summary thead th { padding: 3px 2px; }
  .summary tbody th { min-width: 4.5rem; }
  .spread, .note, caption { font-size: 6.5pt; }
}
"""

PAGE = """{% macro table(label, kind, columns, caption="") %}
<div class="wide" role="region" aria-labelledby="{{ label }}" tabindex="0">
<table class="{{ kind }}" role="table">
{% if caption %}<caption>{{ caption }}</caption>{% endif %}
<thead role="rowgroup"><tr role="row">
{%- for name in columns %}<th scope="col" role="columnheader">{{ name }}</th>{% endfor -%}
</tr></thead>
<tbody role="rowgroup">{{ caller() }}</tbody>
</table>
</div>
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="gradsift {{ version }}">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="quiet">{{ about }}</p>
</header>
<main>
{% if notes %}
<section class="notes" aria-label="Please note">
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
</section>
{% endif %}
<section aria-labelledby="summary">
<h2 id="summary">Summary</h2>
{% call table("summary", "summary stack", columns, caption) %}
{% for line in lines %}
<tr role="row"><th scope="row" role="rowheader">{{ swatches[loop.index0] }}{{ line[0].mean }}</th>
{%- for cell in line[1:] %}<td role="cell" data-label="{{ columns[loop.index] }}"><span>{{ cell.mean }}
{%- if cell.spread %}<span class="spread">{{ cell.spread }}</span>{% endif %}
{%- if cell.note %}<span class="note">{{ cell.note }}</span>{% endif %}</span></td>{% endfor -%}
</tr>
{% endfor %}
{% endcall %}
</section>
{% for section in sections if section.figures or section.text %}
<section aria-labelledby="{{ section.id }}">
<h2 id="{{ section.id }}">{{ section.title }}</h2>
{% for line in section.text %}<p>{{ line }}</p>{% endfor %}
<div class="figures">
{% for figure in section.figures %}
<figure id="figure-{{ figure.name }}">
<h3>{{ figure.title }}</h3>
{{ svg(figure) }}
<figcaption>{{ figure.caption }}
{%- if formats %}<span class="files">Files:
{%- for kind in formats %} <a href="figures/{{ figure.name }}.{{ kind }}">{{ figure.name }}.{{ kind }}</a>{% endfor -%}
</span>{% endif -%}
</figcaption>
</figure>
{% endfor %}
</div>
</section>
{% endfor %}
<section aria-labelledby="configuration">
<h2 id="configuration">Configuration</h2>
{% if apart %}
<h3 id="apart">What sets the methods apart</h3>
{% call table("apart", "stack", ["Method", "Settings"]) %}
{% for label, settings in apart %}
<tr role="row"><th scope="row" role="rowheader">{{ label }}</th><td role="cell" class="whole"><dl>
{%- for path, value in settings %}<dt><code>{{ path }}</code></dt><dd>{{ value }}</dd>{% endfor -%}
</dl></td></tr>
{% endfor %}
{% endcall %}
{% endif %}
<h3 id="shared">The same in all runs</h3>
{% call table("shared", "config", ["Setting", "Value"]) %}
{% for path, value in shared %}
<tr role="row"><th scope="row" role="rowheader"><code>{{ path }}</code></th><td role="cell">
{%- if "\\n" in value %}<pre>{{ value }}</pre>{% else %}{{ value }}{% endif %}</td></tr>
{% endfor %}
{% endcall %}
<h3 id="runs">Runs</h3>
{% call table("runs", "stack", ["Folder", "Method", "Seed", "Rounds", "Own settings"]) %}
{% for folder, method, seed, rounds, settings in runs %}
<tr role="row"><th scope="row" role="rowheader"><code>{{ folder }}</code></th>
<td role="cell" data-label="Method">{{ method }}</td>
<td role="cell" data-label="Seed">{{ seed }}</td>
<td role="cell" data-label="Rounds">{{ rounds }}</td>
<td role="cell" data-label="Own settings"><span>{% for path, value in settings %}<code>{{ path }}</code> {{ value }}
{%- if not loop.last %}; {% endif %}{% else %}–{% endfor %}</span></td></tr>
{% endfor %}
{% endcall %}
</section>
</main>
<footer>
<p>How the curves are made: a run is evaluated every few rounds, and seeds reach those rounds at different costs. Each
seed is interpolated linearly between its own evaluations, on one grid for all seeds of the method. Nothing is
extrapolated: the mean and the band end where the shortest seed ends, and longer seeds continue as thin lines. The cost
to reach a target is read from the line between the last evaluation that misses the target and the first that meets it;
seeds that never reach it are counted, not averaged.</p>
<p>Made by gradsift {{ version }}.</p>
</footer>
</body>
</html>
"""
