#include "troika/train/checkpoint/safetensors.h"

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
#include "troika/train/checkpoint/crc32c.h"
#include "troika/train/checkpoint/safetensors_header.h"

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
  FileDigest digest{.tensors = std::vector<uint32_t>(tensors.size())};
  write_file_atomically(path, [&](const File& file) {
    const std::string front = little_endian(json.size()) + json;
    file.write(front);
    digest.bytes = static_cast<int64_t>(front.size()) + offset;
    digest.header = crc32c(front);
    for (const size_t i : order) {
      const at::Tensor host = tensors[i].second.detach().to(at::kCPU).resolve_neg().contiguous();
      const std::string_view bytes(static_cast<const char*>(host.data_ptr()), host.nbytes());
      file.write(bytes);
      digest.tensors[i] = crc32c(bytes);
    }
  });
  return digest;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path, O_RDONLY) {
  const int64_t after_length = file_.size() - kLengthBytes;
  if (after_length < 0) {
    throw refusal(path, "not a safetensors file, or cut short",
                  fmt::format("{} bytes", file_.size()), "a header length of 8 bytes");
  }
  uint64_t length = 0;
  file_.read_at(0, {reinterpret_cast<char*>(&length), sizeof length});
  const int64_t limit = std::min(after_length, kMaxHeaderBytes);
  if (length > static_cast<uint64_t>(limit)) {
    throw refusal(path, "not a safetensors file, or cut short",
                  fmt::format("a header of {} bytes", length), fmt::format("at most {}", limit));
  }
  std::string json(length, '\0');
  file_.read_at(kLengthBytes, json);
  data_start_ = kLengthBytes + static_cast<int64_t>(length);
  header_crc32c_ = crc32c(json, crc32c(little_endian(length)));
  header_ = std::make_unique<const SafetensorsHeader>(
      parse_header(json, file_.size() - data_start_, path.string()));
}

SafetensorsFile::~SafetensorsFile() = default;

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto& entries = header_->entries;
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const TensorEntry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

at::Tensor SafetensorsFile::read(const TensorEntry& tensor, int64_t offset, int64_t count,
                                 uint32_t* crc) const {
  const at::Tensor result = at::empty({count}, at::TensorOptions(tensor.dtype));
  const std::span<char> bytes(static_cast<char*>(result.data_ptr()), result.nbytes());
  const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const int64_t begin = tensor.begin + offset * size;
  file_.read_at(data_start_ + begin, bytes);
  if (tensor.dtype == at::kBool) {
    check_bool(file_.path(), tensor.name, {bytes.data(), bytes.size()});
  }
  if (!crc) return result;
  *crc = crc32c_of(tensor.begin, begin, 0);
  *crc = crc32c({bytes.data(), bytes.size()}, *crc);
  *crc = crc32c_of(begin + count * size, tensor.end, *crc);
  return result;
}

uint32_t SafetensorsFile::crc32c_of(int64_t begin, int64_t end, uint32_t before) const {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<char> piece(static_cast<size_t>(std::min(kPiece, end - begin)));
  for (; begin < end; begin += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, end - begin)));
    file_.read_at(data_start_ + begin, piece);
    before = crc32c({piece.data(), piece.size()}, before);
  }
  return before;
}

NamedTensors load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  for (const TensorEntry& entry : file.header().entries) {
    tensors.emplace_back(
        entry.name, file.read(entry, 0, c10::multiply_integers(entry.shape)).view(entry.shape));
  }
  return tensors;
}

Metadata read_safetensors_metadata(const std::filesystem::path& path) {
  return SafetensorsFile(path).header().metadata;
}

void require_fit(const Shapes& model, const Shapes& given, std::string_view origin) {
  std::unordered_map<std::string_view, const std::vector<int64_t>*> unused;
  for (const auto& [name, shape] : given) unused.emplace(name, &shape);
  std::vector<std::string> missing, mismatched, unexpected;
  for (const auto& [name, shape] : model) {
    const auto found = unused.find(name);
    if (found == unused.end()) {
      missing.push_back(fmt::format("`{}`", name));
      continue;
    }
    if (*found->second != shape) {
      mismatched.push_back(fmt::format("`{}` of shape [{}] instead of [{}]", name,
                                       fmt::join(*found->second, ", "), fmt::join(shape, ", ")));
    }
    unused.erase(found);
  }
  for (const auto& [name, shape] : given) {
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
}

void load_into(const NamedTensors& destination, const NamedTensors& source,
               std::string_view origin) {
  const auto shapes = [](const NamedTensors& tensors) {
    Shapes result;
    for (const auto& [name, tensor] : tensors) result.emplace_back(name, tensor.sizes().vec());
    return result;
  };
  require_fit(shapes(destination), shapes(source), origin);
  const std::unordered_map<std::string, at::Tensor> values(source.begin(), source.end());
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : destination) tensor.copy_(values.at(name));
}

}  // namespace troika::train
