#include "troika/train/tuning/tuning_file.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"

namespace troika::train {

using Json = nlohmann::ordered_json;

namespace {

// Throws nlohmann's exceptions for JSON that to_json() does not produce.
TuningEntry to_entry(const Json& json) {
  TuningEntry entry{.question = {.what = json.at("what").get<std::string>(),
                                 .cpu = json.at("cpu").get<std::string>(),
                                 .libtorch = json.at("libtorch").get<std::string>(),
                                 .threads = json.at("threads").get<int>()},
                    .choice = json.at("choice").get<std::string>(),
                    .candidates = {}};
  for (const auto& [name, seconds] : json.at("seconds").items()) {
    entry.candidates.push_back({name, seconds.get<double>()});
  }
  return entry;
}

}  // namespace

Json to_json(const TuningEntry& entry) {
  Json candidates = Json::object();
  for (const auto& candidate : entry.candidates) candidates[candidate.name] = candidate.seconds;
  return {{"what", entry.question.what},
          {"cpu", entry.question.cpu},
          {"libtorch", entry.question.libtorch},
          {"threads", entry.question.threads},
          {"choice", entry.choice},
          {"seconds", candidates}};
}

TuningFile TuningFile::of_user() {
  // The XDG specification requires relative paths to be ignored.
  for (const auto& [variable, below] : {std::pair("XDG_CACHE_HOME", ""), {"HOME", ".cache"}}) {
    const char* folder = std::getenv(variable);
    if (folder && *folder == '/') {
      return TuningFile(std::filesystem::path(folder) / below / "troika" / "tuning.json");
    }
  }
  return TuningFile({});
}

std::vector<TuningEntry> TuningFile::read() const {
  std::error_code none;
  if (path_.empty() || !std::filesystem::exists(path_, none)) return {};
  std::vector<TuningEntry> entries;
  try {
    for (const auto& entry : Json::parse(read_file(path_))) entries.push_back(to_entry(entry));
  } catch (const std::exception& problem) {
    log::warn("[train] what was timed before is not read from {}: {}", path_.string(),
              problem.what());
    return {};
  }
  return entries;
}

std::string TuningFile::choice(const TuningQuestion& question) const {
  for (const auto& entry : read()) {
    if (entry.question == question) return entry.choice;
  }
  return {};
}

void TuningFile::add(const TuningEntry& entry) const {
  if (path_.empty()) return;
  auto entries = read();
  std::erase_if(entries, [&](const auto& other) { return other.question == entry.question; });
  entries.push_back(entry);
  Json all = Json::array();
  for (const auto& one : entries) all.push_back(to_json(one));
  try {
    write_file_atomically(path_, all.dump(1) + "\n");
  } catch (const std::exception& problem) {
    log::warn("[train] what was timed is not kept: {}", problem.what());
  }
}

}  // namespace troika::train
