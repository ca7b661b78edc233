#include "troika/checkpoint/weight_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/checkpoint/safetensors_header.h"
#include "troika/compat/torch.h"

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

// Reads `load(file)` for one file, or for those of an index.
template <typename Load>
NamedTensors from_files(const std::filesystem::path& path, const Load& load) {
  if (!path.string().ends_with(kIndexEnding)) return load(path);
  NamedTensors all;
  for (const auto& [file, names] : files_by_name(path)) {
    auto tensors = load(path.parent_path() / file);
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

NamedTensors shapes_of(const std::filesystem::path& file) {
  NamedTensors result;
  const SafetensorsFile opened(file);
  for (const auto& entry : opened.header().entries) {
    result.emplace_back(entry.name, at::zeros({}, entry.dtype).expand(entry.shape));
  }
  return result;
}

}  // namespace

NamedTensors load_weight_files(const std::filesystem::path& path) {
  return from_files(path, load_safetensors);
}

NamedTensors weight_shapes(const std::filesystem::path& path) {
  return from_files(path, shapes_of);
}

std::filesystem::path in_model_folder(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::exists(path / "config.json", none)) return path;
  for (const auto* const name : {"model.safetensors.index.json", "model.safetensors"}) {
    if (std::filesystem::exists(path / name, none)) return path / name;
  }
  return path;
}

}  // namespace troika::checkpoint
