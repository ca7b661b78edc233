#include "troika/nn/offload.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

// Whether the tensor is a parameter or a view of one, such as the transposed weight of a linear
// layer.
bool is_parameter(const at::Tensor& tensor) {
  const auto& base = tensor.is_view() ? tensor._base() : tensor;
  return base.is_leaf() && base.requires_grad();
}

}  // namespace

bool may_be_offloaded(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense() &&
         !is_parameter(tensor);
}

namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kLeastSwept = 64;

bool stays(const at::Tensor& tensor, bool hosts_leave) {
  return tensor.is_cpu() != hosts_leave || !may_be_offloaded(tensor) ||
         static_cast<int64_t>(tensor.nbytes()) < kLeastOffloadedBytes;
}

class Offload : public BlockWrapper {
 public:
  explicit Offload(std::shared_ptr<compat::SavedTensorHooks> to) : to_(std::move(to)) {}
  WrapperKind kind() const override { return WrapperKind::offload; }
  Tensors run(const BlockRun& run, Tensors inputs, const InnerBlocks& next) override {
    const compat::SavedTensorGuard guard(*to_);
    return next(run, std::move(inputs));
  }

 private:
  const std::shared_ptr<compat::SavedTensorHooks> to_;
};

}  // namespace

WrapperGuard offload(Model& model, std::shared_ptr<compat::SavedTensorHooks> to) {
  return {model, std::make_shared<Offload>(std::move(to))};
}

// Chunks of files, filled one after the other. Each is used again once nothing in it is live.
class ActivationOffload::Arena {
 public:
  explicit Arena(std::filesystem::path folder) : folder_(std::move(folder)) {}

  struct Place {
    size_t chunk;
    const MappedFile* file;
    char* data;
  };

  Place take(size_t bytes) {
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    if (chunks_.empty() || !chunks_[current_].has_room(whole)) current_ = chunk_with(whole);
    auto& chunk = chunks_[current_];
    const Place place{current_, chunk.file.get(), chunk.file->data() + chunk.used};
    chunk.used += whole;
    ++chunk.slots;
    live_ += static_cast<int64_t>(bytes);
    return place;
  }

  void give_back(const Place& place, size_t bytes) {
    live_ -= static_cast<int64_t>(bytes);
    auto& chunk = chunks_[place.chunk];
    if (--chunk.slots == 0) chunk.used = 0;
  }

  int64_t live() const { return live_; }

 private:
  struct Chunk {
    std::unique_ptr<MappedFile> file;
    size_t used = 0;
    int slots = 0;  // live

    bool has_room(size_t bytes) const { return used + bytes <= file->size(); }
  };

  size_t chunk_with(size_t bytes) {
    const auto found = std::ranges::find_if(
        chunks_, [&](const Chunk& chunk) { return chunk.slots == 0 && chunk.has_room(bytes); });
    if (found != chunks_.end()) return static_cast<size_t>(found - chunks_.begin());
    chunks_.push_back({std::make_unique<MappedFile>(folder_, std::max(bytes, kChunkBytes))});
    return chunks_.size() - 1;
  }

  const std::filesystem::path folder_;
  std::vector<Chunk> chunks_;
  size_t current_ = 0;  // the chunk being filled
  int64_t live_ = 0;
};

// One tensor in a file.
struct ActivationOffload::FileSlot {
  FileSlot(std::shared_ptr<Arena> from, const at::Tensor& tensor)
      : arena(std::move(from)),
        bytes(tensor.nbytes()),
        place(arena->take(bytes)),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        type(tensor.scalar_type()) {
    std::memcpy(place.data, tensor.data_ptr(), bytes);
    place.file->release(place.data, bytes);
  }
  ~FileSlot() {
    // Releases the pages that were read back into memory.
    place.file->release(place.data, bytes);
    arena->give_back(place, bytes);
  }
  FileSlot(const FileSlot&) = delete;
  FileSlot& operator=(const FileSlot&) = delete;

  bool holds(const at::Tensor& tensor) const {
    return type == tensor.scalar_type() && sizes == tensor.sizes() && strides == tensor.strides();
  }

  const std::shared_ptr<Arena> arena;
  const size_t bytes;
  const Arena::Place place;
  const std::vector<int64_t> sizes;
  const std::vector<int64_t> strides;
  const at::ScalarType type;
  std::weak_ptr<FileSlot> before;  // the slot saved before this one, so needed after it
};

struct ActivationOffload::Known {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t version = 0;
  std::weak_ptr<FileSlot> slot;
};

ActivationOffload::ActivationOffload(std::filesystem::path folder)
    : arena_(std::make_shared<Arena>(std::move(folder))) {}

ActivationOffload::~ActivationOffload() = default;

int64_t ActivationOffload::bytes() const {
  return arena_->live();
}

std::shared_ptr<ActivationOffload::FileSlot> ActivationOffload::slot_for(const at::Tensor& tensor) {
  if (known_.size() >= 2 * live_known_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.slot.expired(); });
    live_known_ = std::max(known_.size(), kLeastSwept);
  }
  const auto found = known_.find(tensor.data_ptr());
  if (found != known_.end()) {
    const auto slot = found->second.slot.lock();
    const bool same = slot && !found->second.storage.expired() &&
                      found->second.version == tensor._version() && slot->holds(tensor);
    if (same) return slot;
  }
  auto slot = std::make_shared<FileSlot>(arena_, tensor);
  slot->before = last_;
  last_ = slot;
  known_.insert_or_assign(tensor.data_ptr(),
                          Known{tensor.storage().getWeakStorageImpl(), tensor._version(), slot});
  return slot;
}

std::function<at::Tensor()> ActivationOffload::pack(const at::Tensor& tensor) {
  if (stays(tensor, /*hosts_leave=*/true)) return [kept = tensor.detach()] { return kept; };
  return [slot = slot_for(tensor)] {
    if (const auto next = slot->before.lock())
      next->place.file->prefetch(next->place.data, next->bytes);
    return at::from_blob(
        slot->place.data, slot->sizes, slot->strides, [slot](void*) {}, slot->type);
  };
}

std::function<at::Tensor()> HostOffload::pack(const at::Tensor& tensor) {
  if (stays(tensor, /*hosts_leave=*/false)) return [kept = tensor.detach()] { return kept; };
  const auto host =
      at::empty_strided(tensor.sizes(), tensor.strides(), compat::staging_options(tensor));
  host.copy_(tensor.detach(), /*non_blocking=*/true);
  return [host, device = tensor.device()] {
    return host.to(device, host.scalar_type(), /*non_blocking=*/true);
  };
}

}  // namespace troika::nn
