// Reads the rows of the logs in a run's folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika::train {

constexpr const char* kMeasuredMetric = "train/samples_per_second";

// The rows of a file in their order: a step and the logged values, without values that differ
// between equal runs.
using LoggedRows = std::vector<std::pair<int64_t, std::map<std::string, std::string>>>;

inline LoggedRows csv_rows(const std::filesystem::path& run) {
  LoggedRows rows;
  const auto file = run / "metrics.csv";
  if (!std::filesystem::exists(file)) return rows;
  auto lines = split(read_file(file), '\n');
  const auto header = split(lines.at(0), ',');
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    const auto cells = split(lines[i], ',');
    EXPECT_EQ(cells.size(), header.size()) << "line " << i + 1 << ": " << lines[i];
    std::map<std::string, std::string> row;
    for (size_t c = 1; c < std::min(cells.size(), header.size()); ++c) {
      if (!cells[c].empty() && header[c] != kMeasuredMetric) row[header[c]] = cells[c];
    }
    rows.emplace_back(std::stoll(cells[0]), row);
  }
  return rows;
}
inline LoggedRows jsonl_rows(const std::filesystem::path& run) {
  LoggedRows rows;
  const auto file = run / "metrics.jsonl";
  if (!std::filesystem::exists(file)) return rows;
  auto lines = split(read_file(file), '\n');
  lines.pop_back();
  for (const auto& line : lines) {
    std::map<std::string, std::string> row;
    const auto json = nlohmann::json::parse(line);
    for (const auto& [name, value] : json.items()) {
      if (name != "step" && name != "time" && name != kMeasuredMetric) row[name] = value.dump();
    }
    rows.emplace_back(json.at("step").get<int64_t>(), row);
  }
  return rows;
}
}  // namespace troika::train
