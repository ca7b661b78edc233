#include "troika/checkpoint/weight_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::checkpoint {

namespace {

constexpr std::string_view kIndexEnding = ".index.json";

[[noreturn]] void refuse_index(const std::filesystem::path& index, const std::string& got,
                               const std::string& expected) {
  throw Error("checkpoint", ErrorKind::usage,
              {.what = index.string() + " is not an index of safetensors files",
               .got = got,
               .expected = expected});
}

// Returns the names of the tensors by file.
std::map<std::string, std::vector<std::string>> files_by_name(const std::filesystem::path& index) {
  const auto json = nlohmann::json::parse(read_file(index), nullptr, /*allow_exceptions=*/false);
  const auto found = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_object()) {
    refuse_index(index, "no object `weight_map`", "an object with the file of each tensor");
  }
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [name, file] : found->items()) {
    const bool is_name = file.is_string() && !file.get<std::string>().empty() &&
                         file.get<std::string>().find('/') == std::string::npos;
    if (!is_name) refuse_index(index, file.dump() + " for " + name, "the name of a file beside it");
    names[file.get<std::string>()].push_back(name);
  }
  return names;
}

}  // namespace

NamedTensors load_weight_files(const std::filesystem::path& path) {
  if (!path.string().ends_with(kIndexEnding)) return load_safetensors(path);
  NamedTensors all;
  for (const auto& [file, names] : files_by_name(path)) {
    auto tensors = load_safetensors(path.parent_path() / file);
    for (const auto& name : names) {
      const auto found =
          std::ranges::find(tensors, name, [](const auto& item) { return item.first; });
      if (found == tensors.end()) {
        throw Error("checkpoint", ErrorKind::usage,
                    {.what = file + " lacks a tensor that " + path.string() + " finds there",
                     .got = "no " + name,
                     .hint = "is the download complete?"});
      }
      all.push_back(std::move(*found));
      tensors.erase(found);
    }
  }
  return all;
}

}  // namespace troika::checkpoint
