// Reads the profiles of PipeDream (graph.txt) and DAPPLE (profiling_results): a line for each
// layer, then an indented line for each edge.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "troika/base/text.h"
#include "troika/layout/block_rules.h"
#include "troika/layout/errors/refuse.h"
#include "troika/layout/located_json.h"
#include "troika/layout/profile.h"

namespace troika::layout {

namespace {

constexpr std::string_view kSeparator = " -- ";
constexpr double kMillisecond = 1e-3;

// Profiles are also written as JSON, whose library requires UTF-8.
bool is_utf8(std::string_view text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::vector<std::string> split_at(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (size_t end = text.find(separator); end != std::string_view::npos;
       end = text.find(separator)) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

// A line of the file, for errors.
struct Line {
  std::string_view file;
  int number;

  [[noreturn]] void fail(const std::string& what, const std::string& got,
                         std::string expected) const {
    refuse(fmt::format("{} ({}:{})", shortened(what), file, number), shortened(got),
           std::move(expected));
  }
  double number_in(const std::string& key, const std::string& text, double most) const {
    const auto value = parse_double(text);
    if (!value || !std::isfinite(*value) || *value < 0) fail(key, text, "a number >= 0");
    if (*value > most) fail(key, text, fmt::format("at most {:g}", most));
    return *value;
  }
  // Returns the value of `key=value`, at most `most`. The sizes of several outputs, [a; b], are
  // added.
  double value(const std::string& key, const std::string& text, double most) const {
    const auto parts = split_at(text, "=");
    if (parts.size() != 2 || parts[0] != key) fail(key, text, key + "=NUMBER");
    const auto list = trim(parts[1]);
    if (!list.starts_with('[') || !list.ends_with(']'))
      return number_in(key, std::string(list), most);
    double sum = 0;
    for (const auto& one : split_at(list.substr(1, list.size() - 2), ";")) {
      sum += number_in(key, std::string(trim(one)), most);
    }
    if (sum > most) fail(key, std::string(list), fmt::format("a sum of at most {:g}", most));
    return sum;
  }
};

ProfiledBlock read_layer(const Line& line, const std::vector<std::string>& parts) {
  constexpr double kMostMilliseconds = kMostSeconds / kMillisecond;
  constexpr std::array<std::pair<const char*, double>, 4> kKeys{
      {{"forward_compute_time", kMostMilliseconds},
       {"backward_compute_time", kMostMilliseconds},
       {"activation_size", kMostNumber},
       {"parameter_size", kMostNumber}}};
  if (!is_block_name(parts[0])) line.fail("a layer", parts[0], kBlockNames);
  const auto texts = split_at(parts[2], ", ");
  if (texts.size() != kKeys.size()) {
    line.fail(parts[0], parts[2],
              "forward_compute_time, backward_compute_time, activation_size and parameter_size");
  }
  std::array<double, 4> values{};
  for (size_t i = 0; i < kKeys.size(); ++i) {
    const auto& [key, most] = kKeys[i];
    values[i] = line.value(key, texts[i], most);
  }
  // The time of an input layer is the wait for data, which each stage loads itself.
  if (parts[1].starts_with("Input")) values = {};
  return {.name = parts[0],
          .layer = parts[1],
          .forward = values[0] * kMillisecond,
          .backward_input = values[1] * kMillisecond / 2,
          .backward_weight = values[1] * kMillisecond / 2,
          .output_bytes = values[2],
          .saved_bytes = values[2],
          .parameter_bytes = values[3]};
}

}  // namespace

Profile parse_pipedream_graph(std::string_view text, std::string_view name) {
  Profile profile{.splits_backward = false};
  std::map<std::string, size_t> names;
  Line line{.file = name, .number = 0};
  const auto block_of = [&](const std::string& node) {
    const auto found = names.find(node);
    if (found == names.end()) line.fail("an edge", node, "a layer of the lines above");
    return found->second;
  };
  for (const auto& row : split(text, '\n')) {
    ++line.number;
    if (trim(row).empty()) continue;
    if (!is_utf8(row)) line.fail("the line", "bytes that are no UTF-8", "text in UTF-8");
    const auto parts = split_at(trim(row), kSeparator);
    if (row.starts_with('\t') || row.starts_with(' ')) {
      if (parts.size() != 2) line.fail("an edge", std::string(trim(row)), "NODE -- NODE");
      profile.edges.emplace_back(block_of(parts[0]), block_of(parts[1]));
      continue;
    }
    // A plan of PipeDream's optimizer has a fourth part, the stage.
    if (parts.size() != 3 && parts.size() != 4) {
      line.fail("a layer", std::string(trim(row)), "NODE -- LAYER -- TIMES AND SIZES, or JSON");
    }
    profile.blocks.push_back(read_layer(line, parts));
    if (!names.emplace(parts[0], names.size()).second) {
      line.fail("a layer", parts[0], "a name that no other layer has");
    }
  }
  if (profile.edges.empty() && profile.blocks.size() > 1) {
    line.fail("the graph", "no edges", "a line for each, after those of the layers");
  }
  if (!profile.takes_time()) {
    line.fail("the layers", "0 seconds in all", "a layer that takes time");
  }
  if (profile.topological_order().size() < profile.blocks.size()) {
    line.fail("the edges", "a circle", "edges from layers to layers that come after them");
  }
  return profile;
}

}  // namespace troika::layout
