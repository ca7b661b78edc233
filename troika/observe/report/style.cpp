#include "troika/observe/report/style.h"

#include <fmt/format.h>

namespace troika::observe::report {

std::string style_sheet() {
  std::string css = R"(:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff;
  --quiet: #5a5a5a; --line: #dcdcdc; --field: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --page: #161616; --quiet: #b0b0b0; --line: #383838; --field: #222222; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 76rem; margin: 1.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { max-width: 46rem; }
.facts { display: grid; gap: .5rem; margin: 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 10.5rem), 1fr)); }
.facts div { background: var(--field); border-radius: .4rem; padding: .45rem .7rem; }
.facts dt { color: var(--quiet); font-size: 13px; }
.facts dd { margin: 0; font-size: 1.05rem; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
.charts { display: grid; gap: 1.6rem 2.4rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.charts > * { min-width: 0; }
.chart { margin: .4rem 0; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
.legend { font-size: 13px; margin: .15rem 0 .4rem; }
.legend > span { margin-right: .9em; white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .35em;
  border-radius: .15em; }
.frame { display: grid; grid-template-columns: auto auto 1fr; font-size: 12px; line-height: 1.3;
  color: var(--quiet); padding: .5rem 1.2rem 0 0; font-variant-numeric: tabular-nums; }
.y-label { grid-column: 1; grid-row: 1; writing-mode: vertical-rl; transform: rotate(180deg);
  text-align: center; }
.y-ticks { grid-column: 2; grid-row: 1; position: relative; margin: 0 .5rem; text-align: right; }
.y-ticks i { display: block; height: 0; visibility: hidden; white-space: nowrap; }
.y-ticks span { position: absolute; right: 0; transform: translateY(-50%); white-space: nowrap; }
svg { grid-column: 3; grid-row: 1; width: 100%; display: block; overflow: visible; }
svg * { vector-effect: non-scaling-stroke; }
.x-ticks { grid-column: 3; grid-row: 2; position: relative; height: 1.6em; margin-top: .3rem; }
.x-ticks span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.x-label { grid-column: 3; grid-row: 3; text-align: center; }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.pale { stroke-opacity: .6; }
.dot { fill: none; stroke-width: 7; stroke-linecap: round; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--quiet); font-size: 13px; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .9rem .2rem 0; text-align: right;
  vertical-align: top; }
th { font-weight: 600; } th[scope=row] { font-weight: normal; }
th:first-child { text-align: left; white-space: nowrap; }
@media (max-width: 40rem) {
  .stacks, .stacks caption, .stacks tbody, .stacks tr, .stacks th { display: block; }
  .stacks tr:first-of-type { display: none; }
  .stacks tr { border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .stacks th, .stacks td { border: 0; padding: .1rem 0; white-space: normal; }
  .stacks th[scope=row] { font-weight: 600; }
  .stacks td { display: flex; justify-content: space-between; gap: 1rem; }
  .stacks td::before { content: attr(data-name); color: var(--quiet); text-align: left; }
}
.failure { border-left: .25rem solid #d55e00; padding: .3rem .8rem; background: var(--field);
  overflow-wrap: anywhere; white-space: pre-line; }
.options { display: grid; gap: .8rem 2.4rem; margin: 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.options div { min-width: 0; } .options dt { overflow-wrap: anywhere; }
.options dd, .options span { margin: 0; color: var(--quiet); font-size: 13px; }
.options span { margin-left: .6em; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--quiet); font-size: 13px; }
code { font-size: .93em; }
)";
  for (size_t i = 0; i < kColours.size(); ++i) {
    css += fmt::format(
        ".c{0} {{ fill: {1}; }} .l{0} {{ stroke: {1}; }} .k{0} {{ background: {1}; }}\n", i,
        kColours[i]);
  }
  return css;
}

}  // namespace troika::observe::report
