#include "troika/train/checkpoint/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/train/checkpoint/safetensors_header.h"

namespace troika::train {

CheckpointReader::CheckpointReader(std::filesystem::path checkpoint, int rank)
    : CheckpointReader(checkpoint, rank,
                       std::make_shared<const CheckpointIndex>(read_index(checkpoint))) {}

CheckpointReader::CheckpointReader(std::filesystem::path checkpoint, int rank,
                                   std::shared_ptr<const CheckpointIndex> index)
    : checkpoint_(std::move(checkpoint)), rank_(rank), index_(std::move(index)) {}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

CheckpointReader CheckpointReader::of(int rank) const {
  return {checkpoint_, rank, index_};
}

std::vector<std::string> CheckpointReader::names(std::string_view prefix) const {
  std::set<std::string> result;
  for (const std::string& start : {std::string(), own_name(rank_, "")}) {
    const std::string whole = start + std::string(prefix);
    for (auto at = index_->tensors.lower_bound(whole);
         at != index_->tensors.end() && at->first.starts_with(whole); ++at) {
      result.insert(at->first.substr(start.size()));
    }
  }
  std::erase_if(result, [](const std::string& name) { return is_own_name(name); });
  return {result.begin(), result.end()};
}

const SavedTensor* CheckpointReader::find(const std::string& name) const {
  auto found = index_->tensors.find(own_name(rank_, name));
  if (found == index_->tensors.end()) found = index_->tensors.find(name);
  return found == index_->tensors.end() ? nullptr : &found->second;
}

const SavedTensor& CheckpointReader::at(const std::string& name) const {
  const auto* tensor = find(name);
  if (tensor) return *tensor;
  throw Error("train", ErrorKind::usage,
              {.what = "checkpoint " + checkpoint_.string() + " does not hold what is asked for",
               .got = fmt::format("no `{}`", name)});
}

at::Tensor CheckpointReader::read(const std::string& name) const {
  const auto& shape = at(name).shape;
  return read(name, 0, c10::multiply_integers(shape)).view(shape);
}

at::Tensor CheckpointReader::read(const std::string& name, int64_t offset, int64_t count) const {
  const auto& tensor = at(name);
  const auto dtype = dtype_named(tensor.dtype);
  const int64_t end = offset + count;
  if (!dtype || offset < 0 || end > c10::multiply_integers(tensor.shape)) {
    throw damaged_checkpoint(
        checkpoint_,
        fmt::format("`{}` of {} [{}]", name, tensor.dtype, fmt::join(tensor.shape, ", ")),
        fmt::format("a known type, and at least {} elements", end));
  }
  const auto result = at::empty({count}, at::TensorOptions(*dtype));
  for (const auto& slice : tensor.slices) {
    const int64_t from = std::max(offset, slice.offset);
    const int64_t to = std::min(end, slice.offset + slice.count);
    if (from >= to) continue;
    const auto part = read(name, tensor, slice, from - slice.offset, to - from);
    if (to - from == count) return part;
    result.narrow(0, from - offset, to - from).copy_(part);
  }
  return result;
}

at::Tensor CheckpointReader::read(const std::string& name, const SavedTensor& tensor,
                                  const SavedSlice& slice, int64_t offset, int64_t count) const {
  const auto& from = file(slice.file);
  const auto* entry = from.find(slice.key);
  if (!entry || dtype_name(entry->dtype) != tensor.dtype ||
      c10::multiply_integers(entry->shape) != slice.count) {
    throw damaged_checkpoint(
        checkpoint_,
        entry ? fmt::format("`{}` of {} [{}] in {}", slice.key, *dtype_name(entry->dtype),
                            fmt::join(entry->shape, ", "), slice.file)
              : fmt::format("no `{}` in {}", slice.key, slice.file),
        fmt::format("{} elements of {}", slice.count, tensor.dtype));
  }
  const int64_t bytes = entry->end - entry->begin;
  const int64_t chunks = bytes == 0 ? 0 : (bytes - 1) / index_->chunk_bytes + 1;
  if (static_cast<int64_t>(slice.crc32c.size()) != chunks) {
    throw damaged_checkpoint(
        checkpoint_,
        fmt::format("`{}` in {} with {} checksums", name, slice.file, slice.crc32c.size()),
        std::to_string(chunks));
  }
  return from.read(*entry, offset, count, index_->chunk_bytes, [&](int64_t chunk, uint32_t crc) {
    const uint32_t expected = slice.crc32c[static_cast<size_t>(chunk)];
    if (crc == expected) return;
    throw damaged_checkpoint(checkpoint_,
                             fmt::format("`{}` in {} with checksum {:08x}", name, slice.file, crc),
                             fmt::format("{:08x}", expected));
  });
}

NamedTensors CheckpointReader::read_all(const std::string& prefix) const {
  NamedTensors result;
  for (const auto& name : names(prefix))
    result.emplace_back(name.substr(prefix.size()), read(name));
  return result;
}

const SafetensorsFile& CheckpointReader::file(const std::string& name) const {
  auto& file = files_[name];
  if (file) return *file;
  const auto written = index_->files.find(name);
  if (written == index_->files.end()) {
    throw damaged_checkpoint(checkpoint_, fmt::format("{} without file {}", kIndexFile, name),
                             "every file that has a tensor's elements");
  }
  const auto& expected = written->second;
  auto path = checkpoint_ / name;
  if (!std::filesystem::exists(path)) {
    throw damaged_checkpoint(checkpoint_, "no " + name,
                             fmt::format("one of {} bytes", expected.bytes));
  }
  // A link may lead to another file of the folder only.
  path = std::filesystem::canonical(path);
  if (path.parent_path() != std::filesystem::canonical(checkpoint_)) {
    throw damaged_checkpoint(checkpoint_, fmt::format("{}, which leads to {}", name, path.string()),
                             "a file in its folder");
  }
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  if (bytes != expected.bytes) {
    throw damaged_checkpoint(checkpoint_, fmt::format("{} of {} bytes", name, bytes),
                             std::to_string(expected.bytes));
  }
  auto opened = std::make_unique<const SafetensorsFile>(path);
  if (opened->header_crc32c() != expected.header) {
    throw damaged_checkpoint(
        checkpoint_,
        fmt::format("{} with a header of checksum {:08x}", name, opened->header_crc32c()),
        fmt::format("{:08x}", expected.header));
  }
  file = std::move(opened);
  return *file;
}

}  // namespace troika::train
