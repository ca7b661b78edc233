#include "troika/checkpoint/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "troika/checkpoint/safetensors_header.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan.h"
#include "troika/layout/runs.h"

namespace troika::checkpoint {

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
  throw Error("checkpoint", ErrorKind::usage,
              {.what = "checkpoint " + checkpoint_.string() + " lacks requested data",
               .got = fmt::format("no `{}`", name)});
}

layout::Mesh CheckpointReader::mesh() const {
  const auto& plan = index_->info.plan;
  if (plan.empty()) return {layout::Axis::data, ranks()};
  auto mesh = layout::Plan::parse(plan, (checkpoint_ / kIndexFile).string(), ranks()).mesh;
  if (mesh.ranks() == ranks()) return mesh;
  throw damaged_checkpoint(checkpoint_,
                           fmt::format("{} with a plan for {} ranks", kIndexFile, mesh.ranks()),
                           std::to_string(ranks()));
}

at::Tensor CheckpointReader::read(const std::string& name) const {
  return read(layout::Box::whole(name, at(name).shape));
}

at::Tensor CheckpointReader::read(const layout::Box& box) const {
  const auto& tensor = at(box.name);
  const auto dtype = dtype_named(tensor.dtype);
  if (!dtype) {
    throw damaged_checkpoint(checkpoint_, fmt::format("`{}` of {}", box.name, tensor.dtype),
                             "a known type");
  }
  if (box.shape != tensor.shape) {
    throw Error("checkpoint", ErrorKind::usage,
                {.what = "checkpoint " + checkpoint_.string() + " lacks requested data",
                 .got = fmt::format("`{}` of shape [{}]", box.name, fmt::join(tensor.shape, ", ")),
                 .expected = fmt::format("[{}]", fmt::join(box.shape, ", "))});
  }
  box.verify();
  const auto options = at::TensorOptions(*dtype);
  const auto result = box.flat ? at::empty({box.count()}, options) : at::empty(box.size, options);
  for (const auto& saved : tensor.boxes) read(box, tensor, saved, result);
  return result;
}

void CheckpointReader::read(const layout::Box& box, const SavedTensor& tensor,
                            const SavedBox& saved, const at::Tensor& into) const {
  layout::Box wanted = box;
  wanted.name = saved.box.name;  // may be a rank's own name
  const layout::Runs runs(saved.box, wanted);
  if (layout::Runs(runs).next() == std::nullopt) return;
  const auto& from = file(saved.file);
  const auto* entry = from.find(saved.key);
  const int64_t count = saved.box.count();
  if (!entry || dtype_name(entry->dtype) != tensor.dtype ||
      c10::multiply_integers(entry->shape) != count) {
    throw damaged_checkpoint(
        checkpoint_,
        entry ? fmt::format("`{}` of {} [{}] in {}", saved.key, *dtype_name(entry->dtype),
                            fmt::join(entry->shape, ", "), saved.file)
              : fmt::format("no `{}` in {}", saved.key, saved.file),
        fmt::format("{} elements of {}", count, tensor.dtype));
  }
  const int64_t bytes = entry->end - entry->begin;
  const int64_t chunks = bytes == 0 ? 0 : (bytes - 1) / index_->chunk_bytes + 1;
  if (static_cast<int64_t>(saved.crc32c.size()) != chunks) {
    throw damaged_checkpoint(
        checkpoint_,
        fmt::format("`{}` in {} with {} checksums", box.name, saved.file, saved.crc32c.size()),
        std::to_string(chunks));
  }
  from.read(*entry, runs, into, index_->chunk_bytes, [&](int64_t chunk, uint32_t crc) {
    const uint32_t expected = saved.crc32c[static_cast<size_t>(chunk)];
    if (crc == expected) return;
    throw damaged_checkpoint(
        checkpoint_, fmt::format("`{}` in {} with checksum {:08x}", box.name, saved.file, crc),
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
  // A link may point only to another file in the same folder.
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

}  // namespace troika::checkpoint
