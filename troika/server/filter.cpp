#include "troika/server/filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

struct Parameter {
  const char* name;
  double Filter::*member;
  std::vector<FilterKind> kinds;
  double least;
  double most;
};

const std::vector<Parameter>& parameters() {
  using enum FilterKind;
  static const std::vector<Parameter> all{
      {"threshold", &Filter::threshold, {significant}, 0, 1e300},
      {"shrink", &Filter::shrink, {significant}, 0, 1e300},
      {"probability", &Filter::probability, {skip}, 1e-6, 1},
      {"l1", &Filter::l1, {kkt}, 0, 1e300},
      {"margin", &Filter::margin, {kkt}, 0, 1e300},
      {"bytes", &Filter::bytes, {fixed}, 1, 3},
      {"seed", &Filter::seed, {skip, fixed}, 0, 0x1p53},
  };
  return all;
}

constexpr std::array<std::pair<const char*, FilterKind>, 7> kFilterKinds{{
    {"significant", FilterKind::significant},
    {"skip", FilterKind::skip},
    {"kkt", FilterKind::kkt},
    {"cache_keys", FilterKind::cache_keys},
    {"half", FilterKind::half},
    {"fixed", FilterKind::fixed},
    {"zlib", FilterKind::zlib},
}};

bool uses(const Parameter& parameter, FilterKind kind) {
  return std::ranges::find(parameter.kinds, kind) != parameter.kinds.end();
}

const char* name_of(FilterKind kind) {
  return std::ranges::find(kFilterKinds, kind, &std::pair<const char*, FilterKind>::second)->first;
}

// The place of a filter in a chain.
int place(FilterKind kind) {
  switch (kind) {
    case FilterKind::significant:
    case FilterKind::skip:
    case FilterKind::kkt:
      return 0;
    case FilterKind::cache_keys:
      return 1;
    case FilterKind::half:
    case FilterKind::fixed:
      return 2;
    case FilterKind::zlib:
      break;
  }
  return 3;
}

[[noreturn]] void refuse(const std::string& what, const std::string& got,
                         const std::string& expected) {
  throw Error("server", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

Filter parse_filter(const std::string& text) {
  const auto words = split(trim(text), ' ');
  std::vector<std::string> names;
  for (const auto& [name, kind] : kFilterKinds) names.push_back(name);
  const auto found = std::ranges::find(names, words[0]);
  if (found == names.end()) {
    throw Error("server", ErrorKind::usage,
                {.what = "unknown filter",
                 .got = words[0],
                 .expected = fmt::format("{}", fmt::join(names, ", ")),
                 .hint = "did you mean " + nearest(words[0], names) + "?"});
  }
  Filter filter{.kind = kFilterKinds[static_cast<size_t>(found - names.begin())].second};
  for (size_t i = 1; i < words.size(); ++i) {
    const auto at = words[i].find('=');
    const auto name = words[i].substr(0, at);
    const auto value = parse_double(at == std::string::npos ? "" : words[i].substr(at + 1));
    const auto parameter = std::ranges::find_if(
        parameters(), [&](const Parameter& p) { return p.name == name && uses(p, filter.kind); });
    if (parameter == parameters().end() || !value) {
      refuse("filter " + words[0] + " does not take this", words[i],
             "name=number, as in `" + to_text(Filters{Filter{.kind = filter.kind}}) + "`");
    }
    filter.*parameter->member = *value;
  }
  return filter;
}

}  // namespace

std::string to_text(const Filters& filters) {
  std::string text;
  for (const auto& filter : filters) {
    if (!text.empty()) text += ", ";
    text += name_of(filter.kind);
    for (const auto& parameter : parameters()) {
      if (!uses(parameter, filter.kind)) continue;
      text += fmt::format(" {}={}", parameter.name, filter.*parameter.member);
    }
  }
  return text;
}

Filters parse_filters(std::string_view text) {
  Filters filters;
  if (trim(text).empty()) return filters;
  for (const auto& part : split(text, ',')) filters.push_back(parse_filter(part));
  return filters;
}

void check_filters(const Filters& filters, Direction direction) {
  int last = -1;
  for (const auto& filter : filters) {
    const std::string name = name_of(filter.kind);
    const int here = place(filter.kind);
    if (direction == Direction::pull && here == 0) {
      refuse("filter " + name + " is for pushes", "a chain for pulls",
             "cache_keys, half, fixed, zlib");
    }
    for (const auto& parameter : parameters()) {
      const double value = filter.*parameter.member;
      if (!uses(parameter, filter.kind)) continue;
      if (!(value >= parameter.least && value <= parameter.most)) {
        refuse(fmt::format("{} of filter {}", parameter.name, name), fmt::format("{}", value),
               fmt::format("{} to {}", parameter.least, parameter.most));
      }
    }
    const auto count = std::ranges::count(filters, filter.kind, &Filter::kind);
    if (here < last || (here == last && here > 0) || count > 1) {
      refuse("the order of filters", to_text(filters),
             "each at most once: significant, skip, kkt; cache_keys; half or fixed; zlib");
    }
    last = here;
  }
}

bool is_lossless(const Filter& filter, const TableSpec& table) {
  const auto rule = table.update.kind;
  switch (filter.kind) {
    case FilterKind::significant:
      return filter.threshold == 0 && table.admit <= 1 && table.rows == 0 &&
             table.update.weight_decay == 0 &&
             (rule == UpdateKind::sum || rule == UpdateKind::sgd || rule == UpdateKind::adagrad);
    case FilterKind::skip:
      return filter.probability == 1;
    case FilterKind::cache_keys:
    case FilterKind::zlib:
      return true;
    case FilterKind::kkt:
    case FilterKind::half:
    case FilterKind::fixed:
      break;
  }
  return false;
}

}  // namespace troika::server
