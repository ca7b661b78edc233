#include "troika/train/report/style.h"

#include <fmt/format.h>

#include "troika/train/report/plots.h"

namespace troika::train::report {

std::string style_sheet() {
  std::string css = R"(:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff;
  --quiet: #5a5a5a; --line: #d8d8d8; --field: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --page: #161616; --quiet: #a8a8a8; --line: #3c3c3c; --field: #222222; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--quiet); }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.legend { font-size: 13px; margin: .3rem 0; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 .8em; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--quiet); font-size: 13px; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .15rem .8rem .15rem 0; text-align: right; }
th:first-child { text-align: left; font-weight: normal; white-space: nowrap; }
details { margin: .4rem 0; overflow-x: auto; } summary { cursor: pointer; color: var(--quiet); }
pre { background: var(--field); padding: .8rem; overflow-x: auto; font-size: 13px; }
)";
  for (size_t i = 0; i < kColours.size(); ++i) {
    css += fmt::format(
        ".c{0} {{ fill: {1}; }} .l{0} {{ stroke: {1}; }} .k{0} {{ background: {1}; }}\n", i,
        kColours[i]);
  }
  return css;
}

}  // namespace troika::train::report
