#include "troika/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "troika/base/checksum.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/checkpoint/safetensors_header.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and tensors are written as they lie in memory");

namespace {

constexpr int64_t kLengthBytes = 8;
// A piece and its copy fit together into a processor's second-level cache, where the piece is
// hashed.
constexpr int64_t kPieceBytes = 256 << 10;
// After this number of written bytes, writing to the disk is started; disks work best on large
// requests.
constexpr int64_t kSyncBytes = 32 << 20;

Error refusal(const std::filesystem::path& path, const std::string& what, std::string got,
              std::string expected) {
  return {"checkpoint",
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

// Returns the indices of the tensors in the order in which their data is stored.
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

// Splits [begin, end) at multiples of `size` and calls `body` with the bounds of each part.
template <typename Body>
void in_pieces(int64_t begin, int64_t end, int64_t size, const Body& body) {
  while (begin < end) {
    const int64_t next = end - begin > size - begin % size ? begin - begin % size + size : end;
    body(begin, next);
    begin = next;
  }
}

// Returns the CRC-32C of each chunk of the tensor's bytes. Passes each piece to `use` while it is
// still in the cache from hashing.
template <typename Use>
std::vector<uint32_t> hash_chunks(const at::Tensor& tensor, const Use& use) {
  const at::Tensor host = tensor.detach().to(at::kCPU).resolve_neg().contiguous();
  const std::string_view bytes(static_cast<const char*>(host.data_ptr()), host.nbytes());
  std::vector<uint32_t> checksums;
  in_pieces(0, static_cast<int64_t>(bytes.size()), kChunkBytes, [&](int64_t begin, int64_t end) {
    uint32_t crc = 0;
    in_pieces(begin, end, kPieceBytes, [&](int64_t from, int64_t to) {
      const auto piece = bytes.substr(static_cast<size_t>(from), static_cast<size_t>(to - from));
      crc = crc32c(piece, crc);
      use(piece);
    });
    checksums.push_back(crc);
  });
  return checksums;
}

std::span<char> span_of(const at::Tensor& tensor) {
  return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()};
}

// Reading a bool whose byte is neither 0 nor 1 is undefined behaviour.
void check_bools(const std::filesystem::path& path, const TensorEntry& tensor,
                 std::span<const char> bytes) {
  if (tensor.dtype != at::kBool) return;
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](char byte) { return byte != 0 && byte != 1; });
  if (bad != bytes.end()) {
    throw refusal(path, fmt::format("bad value in BOOL tensor `{}`", tensor.name),
                  fmt::format("byte {:#04x}", static_cast<unsigned char>(*bad)), "0 or 1");
  }
}

// Runs in units of bytes.
class ByteRuns {
 public:
  ByteRuns(layout::Runs& runs, int64_t element_bytes) : runs_(runs), element_bytes_(element_bytes) {
    advance();
  }

  struct Bytes {
    int64_t from, to, count;
    int64_t end() const { return from + count; }
  };
  bool left() const { return next_.has_value(); }
  const Bytes* operator->() const { return &*next_; }
  void advance() {
    next_.reset();
    if (const auto run = runs_.next()) {
      next_ = {run->from * element_bytes_, run->to * element_bytes_, run->count * element_bytes_};
    }
  }

 private:
  layout::Runs& runs_;
  const int64_t element_bytes_;
  std::optional<Bytes> next_;
};

// "a, b, c and 7 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

std::vector<uint32_t> chunk_checksums(const at::Tensor& tensor) {
  return hash_chunks(tensor, [](std::string_view) {});
}

FileDigest save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                            const Metadata& metadata, Publish publish) {
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
  const std::string front = little_endian(json.size()) + json;
  FileDigest digest{.bytes = static_cast<int64_t>(front.size()) + offset,
                    .header = crc32c(front),
                    .tensors = std::vector<std::vector<uint32_t>>(tensors.size())};
  const auto produce = [&](const File& file) {
    file.reserve(digest.bytes);
    file.write(front);
    int64_t waiting = 0;
    for (const size_t i : order) {
      digest.tensors[i] = hash_chunks(tensors[i].second, [&](std::string_view piece) {
        file.write(piece);
        waiting += static_cast<int64_t>(piece.size());
        if (waiting < kSyncBytes) return;
        file.start_sync();
        waiting = 0;
      });
    }
  };
  if (publish == Publish::at_once) {
    write_file_atomically(path, produce);
  } else {
    write_new_file(path, produce);
  }
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
  for (const TensorEntry& entry : header_->entries) by_name_.emplace(entry.name, &entry);
}

SafetensorsFile::~SafetensorsFile() = default;

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

at::Tensor SafetensorsFile::read(const TensorEntry& tensor, int64_t offset, int64_t count) const {
  const at::Tensor result = at::empty({count}, at::TensorOptions(tensor.dtype));
  const auto bytes = span_of(result);
  const auto size = static_cast<int64_t>(result.element_size());
  file_.read_at(data_start_ + tensor.begin + offset * size, bytes);
  check_bools(file_.path(), tensor, bytes);
  return result;
}

void SafetensorsFile::read(const TensorEntry& tensor, layout::Runs runs, const at::Tensor& into,
                           int64_t chunk_bytes, const CheckChunk& check) const {
  ByteRuns wanted(runs, static_cast<int64_t>(into.element_size()));
  const auto result = span_of(into);
  const int64_t bytes = tensor.end - tensor.begin;
  std::vector<char> buffer;
  // Reads [begin, end) of the tensor's bytes, and copies the wanted parts into the result.
  const auto read_piece = [&](int64_t begin, int64_t end, uint32_t crc) {
    const auto size = static_cast<size_t>(end - begin);
    const bool is_in_run = wanted.left() && wanted->from <= begin && end <= wanted->end();
    if (!is_in_run) buffer.resize(size);
    const std::span<char> piece =
        is_in_run ? result.subspan(static_cast<size_t>(wanted->to + begin - wanted->from), size)
                  : std::span(buffer);
    file_.read_at(data_start_ + tensor.begin + begin, piece);
    while (wanted.left() && wanted->from < end) {
      const int64_t from = std::max(begin, wanted->from), to = std::min(end, wanted->end());
      const auto place = result.subspan(static_cast<size_t>(wanted->to + from - wanted->from),
                                        static_cast<size_t>(to - from));
      if (!is_in_run) std::copy_n(piece.begin() + (from - begin), to - from, place.begin());
      check_bools(file_.path(), tensor, place);
      if (to < wanted->end()) break;
      wanted.advance();
    }
    return crc32c({piece.data(), piece.size()}, crc);
  };
  int64_t done = 0;
  while (wanted.left()) {
    const int64_t chunk = std::max(done, wanted->from) / chunk_bytes;
    const int64_t begin = chunk * chunk_bytes;
    const int64_t end = begin + std::min(chunk_bytes, bytes - begin);
    uint32_t crc = 0;
    in_pieces(begin, end, kPieceBytes,
              [&](int64_t from, int64_t to) { crc = read_piece(from, to, crc); });
    check(chunk, crc);
    done = end;
  }
}

void require_replaceable(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return;
  try {
    const SafetensorsFile file(path);
  } catch (const Error&) {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "tensors would replace " + path.string(),
                 .got = "a file of another kind",
                 .expected = "a new file, or one of tensors",
                 .hint = "remove it, or write elsewhere"});
  }
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
    throw Error("checkpoint", ErrorKind::usage,
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

}  // namespace troika::checkpoint
