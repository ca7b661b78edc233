// Checkpoints that programs under test have written.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cluster/launch_process.h"
#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika {

// Returns the float64 tensors of a file, by name.
inline std::map<std::string, std::vector<double>> saved_weights(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  const auto json = nlohmann::json::parse(text.substr(sizeof header, header));
  std::map<std::string, std::vector<double>> result;
  for (const auto& [name, tensor] : json.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(tensor.at("dtype"), "F64") << name;
    const uint64_t begin = tensor.at("data_offsets").at(0), end = tensor.at("data_offsets").at(1);
    auto& values = result[name];
    values.resize((end - begin) / sizeof(double));
    std::memcpy(values.data(), text.data() + sizeof header + header + begin, end - begin);
  }
  return result;
}

// Expects equal tensors, up to rounding.
inline void expect_same_weights(const std::filesystem::path& file,
                                const std::filesystem::path& oracle) {
  const auto expected = saved_weights(oracle), found = saved_weights(file);
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_GE(expected.size(), 2u);
  for (const auto& [name, values] : expected) {
    const auto& others = found.at(name);
    ASSERT_EQ(others.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(others[i], values[i], 1e-10 * std::max(1.0, std::abs(values[i]))) << name;
    }
  }
}

// Returns the step of the latest checkpoint in the folder; 0 before there is one.
inline int64_t saved_step(const std::filesystem::path& checkpoints) {
  std::error_code none;
  const auto name = std::filesystem::read_symlink(checkpoints / "last", none).string();
  const auto digits = name.substr(name.rfind('=') + 1);
  return parse_int(digits.substr(0, digits.find("-v"))).value_or(0);
}

// Waits for a checkpoint of a later step than `least`.
inline bool saves_beyond(const std::filesystem::path& checkpoints, int64_t least,
                         Milliseconds patience) {
  return cluster::comes_into(
      checkpoints, [&] { return saved_step(checkpoints) > least; }, patience);
}

}  // namespace troika
