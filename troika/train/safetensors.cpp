#include "troika/train/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_map>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/compat/torch.h"
#include "troika/train/safetensors_header.h"

namespace troika::train {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and tensors are written as they lie in memory");

namespace {

constexpr int64_t kLengthBytes = 8;

Error refusal(const std::filesystem::path& path, const std::string& what, std::string got,
              std::string expected) {
  return {"train",
          ErrorKind::usage,
          {.what = fmt::format("{}: {}", path.string(), what),
           .got = std::move(got),
           .expected = std::move(expected)}};
}

void check_can_save(const std::filesystem::path& path, const std::string& name,
                    const at::Tensor& tensor) {
  const std::string what = fmt::format("cannot save tensor `{}`", name);
  if (!tensor.defined()) throw refusal(path, what, "an undefined tensor", {});
  if (tensor.layout() != at::kStrided) throw refusal(path, what, "a sparse tensor", "a dense one");
  if (!dtype_name(tensor.scalar_type())) {
    throw refusal(path, what, fmt::format("dtype {}", c10::toString(tensor.scalar_type())),
                  "a dtype of the safetensors format");
  }
}

// The positions of the entries in the order their data is laid out.
std::vector<size_t> data_order(const NamedTensors& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  return order;
}

std::string little_endian(uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

struct FileHeader {
  SafetensorsHeader header;
  int64_t data_start;
};

FileHeader read_header(const File& file) {
  const auto& path = file.path();
  const int64_t after_length = file.size() - kLengthBytes;
  if (after_length < 0) {
    throw refusal(path, "not a safetensors file, or cut short",
                  fmt::format("{} bytes", file.size()), "a header length of 8 bytes");
  }
  uint64_t length = 0;
  file.read_at(0, {reinterpret_cast<char*>(&length), sizeof length});
  const int64_t limit = std::min(after_length, kMaxHeaderBytes);
  if (length > static_cast<uint64_t>(limit)) {
    throw refusal(path, "not a safetensors file, or cut short",
                  fmt::format("a header of {} bytes", length), fmt::format("at most {}", limit));
  }
  std::string json(length, '\0');
  file.read_at(kLengthBytes, json);
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(length);
  return {parse_header(json, file.size() - data_start, path.string()), data_start};
}

// A bool of any other byte than 0 and 1 is undefined behaviour to read.
void check_bool(const std::filesystem::path& path, const std::string& name,
                std::string_view bytes) {
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](char byte) { return byte != 0 && byte != 1; });
  if (bad != bytes.end()) {
    throw refusal(path, fmt::format("bad value in BOOL tensor `{}`", name),
                  fmt::format("byte {:#04x}", static_cast<unsigned char>(*bad)), "0 or 1");
  }
}

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

// "a, b, c and 7 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

FileDigest save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                            const Metadata& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  for (const auto& [name, tensor] : tensors) {
    check_can_save(path, name, tensor);
    header.entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), 0, 0});
  }
  const std::vector<size_t> order = data_order(tensors);
  int64_t offset = 0;
  for (const size_t i : order) {
    header.entries[i].begin = offset;
    offset += static_cast<int64_t>(tensors[i].second.numel() * tensors[i].second.element_size());
    header.entries[i].end = offset;
  }
  const std::string json = write_header(header, path.string());
  FileDigest digest;
  write_file_atomically(path, [&](const File& file) {
    const auto write = [&](std::string_view bytes) {
      file.write(bytes);
      digest.bytes += static_cast<int64_t>(bytes.size());
      digest.crc32c = crc32c(bytes, digest.crc32c);
    };
    write(little_endian(json.size()) + json);
    for (const size_t i : order) {
      const at::Tensor host = tensors[i].second.detach().to(at::kCPU).resolve_neg().contiguous();
      write({static_cast<const char*>(host.data_ptr()), host.nbytes()});
    }
  });
  return digest;
}

NamedTensors load_safetensors(const std::filesystem::path& path) {
  const File file(path, O_RDONLY);
  const auto [header, data_start] = read_header(file);
  NamedTensors tensors;
  tensors.reserve(header.entries.size());
  for (const TensorEntry& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
    const std::span<char> bytes(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
    file.read_at(data_start + entry.begin, bytes);
    if (entry.dtype == at::kBool) check_bool(path, entry.name, {bytes.data(), bytes.size()});
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  return tensors;
}

Metadata read_safetensors_metadata(const std::filesystem::path& path) {
  return read_header(File(path, O_RDONLY)).header.metadata;
}

void load_into(const NamedTensors& destination, const NamedTensors& source,
               std::string_view origin) {
  std::unordered_map<std::string_view, const at::Tensor*> unused;
  for (const auto& [name, tensor] : source) unused.emplace(name, &tensor);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<std::string> missing, mismatched, unexpected;
  for (const auto& [name, target] : destination) {
    const auto found = unused.find(name);
    if (found == unused.end()) {
      missing.push_back(fmt::format("`{}`", name));
      continue;
    }
    if (found->second->sizes() != target.sizes()) {
      mismatched.push_back(fmt::format("`{}` of shape {} instead of {}", name,
                                       shape_text(*found->second), shape_text(target)));
    }
    copies.emplace_back(target, *found->second);
    unused.erase(found);
  }
  for (const auto& [name, tensor] : source) {
    if (unused.contains(name)) unexpected.push_back(fmt::format("`{}`", name));
  }
  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back("missing " + listed(missing));
  if (!unexpected.empty()) problems.push_back("unexpected " + listed(unexpected));
  if (!mismatched.empty()) problems.push_back(listed(mismatched));
  if (!problems.empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("the tensors of {} do not fit the model", origin),
                 .got = fmt::format("{}", fmt::join(problems, "; "))});
  }
  const torch::NoGradGuard no_grad;
  for (auto& [target, value] : copies) target.copy_(value);
}

}  // namespace troika::train
