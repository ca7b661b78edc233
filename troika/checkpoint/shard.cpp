#include "troika/checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "troika/base/checksum.h"
#include "troika/base/random.h"
#include "troika/checkpoint/safetensors_header.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {

namespace {

enum class Kind : uint64_t {
  weights,  // a whole tensor of rank 0's model
  whole,    // another whole tensor
  part,
};

// The description of a tensor that ranks exchange.
struct Item {
  uint64_t hash = 0;
  uint64_t bytes = 0;
  Kind kind = Kind::whole;
};

struct Candidate {
  ShardTensor part;
  Item item;
};

constexpr int64_t kSampleBytes = 4 << 10;

PlaceHash place_of(const ShardTensor& part) {
  return fingerprint(
      fmt::format("{} {}", part.box.text(), c10::toString(part.tensor.scalar_type())));
}

uint64_t content_of(const at::Tensor& tensor) {
  const auto host = tensor.detach().to(at::kCPU).resolve_neg().contiguous();
  return fingerprint({static_cast<const char*>(host.data_ptr()), host.nbytes()});
}

// Takes evenly spaced rows of a large tensor.
at::Tensor sample_of(const at::Tensor& tensor) {
  const int64_t every = static_cast<int64_t>(tensor.nbytes()) / kSampleBytes;
  return tensor.dim() > 0 && every > 1 ? tensor.slice(0, 0, tensor.size(0), every) : tensor;
}

// If this rank has several boxes of a tensor, gives each its own name in the file.
void name_boxes_apart(std::vector<Candidate>& list) {
  std::map<std::string, int> boxes;
  for (const auto& candidate : list) ++boxes[candidate.part.key];
  for (auto& candidate : list) {
    if (boxes.at(candidate.part.key) > 1) candidate.part.key = candidate.part.box.text();
  }
}

std::vector<Candidate> candidates(const RankState& state, bool is_main) {
  std::vector<Candidate> result;
  const auto add = [&](const std::string& prefix, const state::Entry& entry, bool is_model) {
    const auto& [own_name, tensor] = entry;
    const auto name = prefix + own_name;
    Candidate next{.part = {name, tensor, layout::Box::whole(name, tensor.sizes().vec())},
                   .item = {}};
    if (entry.box) {
      if (entry.box->count() == 0) return;
      next.part.box = *entry.box;
      next.part.box.name = name;
      next.part.tensor = stored_shard(entry);
      next.item.kind = Kind::part;
    } else if (is_model && is_main) {
      next.part.key = own_name;
      next.item.kind = Kind::weights;
    }
    next.item.bytes = next.part.tensor.nbytes();
    result.push_back(std::move(next));
  };
  for (const auto& entry : state.model) add(kModelPrefix, entry, true);
  for (const auto& entry : state.rest) add("", entry, false);
  name_boxes_apart(result);
  return result;
}

// Returns the lists of all ranks.
template <typename T>
std::vector<std::vector<T>> gather_lists(const comm::Group& group, const std::vector<T>& own) {
  const std::string text(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(T));
  std::vector<std::vector<T>> result;
  for (const auto& each : group.all_gather_text(text, "checkpoint")) {
    auto& list = result.emplace_back(each.size() / sizeof(T));
    if (!each.empty()) std::memcpy(list.data(), each.data(), each.size());
  }
  return result;
}

// Sets each item's hash. Reads the content only of items that several ranks have at the same place.
void hash_items(const comm::Group& group, std::vector<Candidate>& own,
                const std::set<PlaceHash>& compared) {
  std::vector<PlaceHash> places;
  for (const auto& candidate : own) places.push_back(place_of(candidate.part));
  std::unordered_map<PlaceHash, int> ranks;
  for (const auto& list : gather_lists(group, places)) {
    for (const PlaceHash place : list) ++ranks[place];
  }
  for (size_t i = 0; i < own.size(); ++i) {
    const PlaceHash place = places[i];
    const at::Tensor& tensor = own[i].part.tensor;
    const auto content = [&] {
      return content_of(compared.contains(place) ? tensor : sample_of(tensor));
    };
    own[i].item.hash = ranks.at(place) > 1 ? mix(place, content()) : place;
  }
}

// Maps the hash of each item that several ranks may hold to the rank that writes it; the same on
// all ranks.
std::map<uint64_t, int> writers(const std::vector<std::vector<Item>>& items) {
  struct Shared {
    Item item;
    std::vector<int> ranks;
  };
  std::set<uint64_t> of_main;
  for (const Item& item : items[0]) of_main.insert(item.hash);
  std::vector<Shared> shared;
  std::map<uint64_t, size_t> places;
  std::vector<uint64_t> load(items.size());
  for (size_t rank = 0; rank < items.size(); ++rank) {
    for (const Item& item : items[rank]) {
      if (item.kind != Kind::part && !of_main.contains(item.hash)) {
        load[rank] += item.bytes;
        continue;
      }
      const auto [place, is_new] = places.emplace(item.hash, shared.size());
      if (is_new) shared.push_back({item, {}});
      if (shared[place->second].item.kind != Kind::weights || rank == 0) {
        shared[place->second].ranks.push_back(static_cast<int>(rank));
      }
    }
  }
  // Items without a choice come first. Then assigning the largest item first gives the best balance
  // (Graham 1969).
  std::stable_sort(shared.begin(), shared.end(), [](const Shared& a, const Shared& b) {
    const bool a_is_fixed = a.item.kind == Kind::weights;
    const bool b_is_fixed = b.item.kind == Kind::weights;
    return std::pair(a_is_fixed, a.item.bytes) > std::pair(b_is_fixed, b.item.bytes);
  });
  std::map<uint64_t, int> result;
  for (const auto& [item, ranks] : shared) {
    const int writer = *std::min_element(ranks.begin(), ranks.end(), [&](int a, int b) {
      return load[static_cast<size_t>(a)] < load[static_cast<size_t>(b)];
    });
    result[item.hash] = writer;
    load[static_cast<size_t>(writer)] += item.bytes;
  }
  return result;
}

// Keeps in `own` the parts that this rank writes, and names those that only it has with own_name().
// Returns the rest.
std::vector<ShardTensor> keep_shard(const comm::Group& group, std::vector<Candidate>& own,
                                    const std::set<PlaceHash>& compared) {
  hash_items(group, own, compared);
  std::vector<Item> items;
  for (const auto& candidate : own) items.push_back(candidate.item);
  const auto by_hash = writers(gather_lists(group, items));
  std::vector<ShardTensor> replicas;
  std::vector<Candidate> kept;
  for (Candidate& candidate : own) {
    const auto writer = by_hash.find(candidate.item.hash);
    if (writer != by_hash.end() && writer->second != group.rank()) {
      replicas.push_back(std::move(candidate.part));
      continue;
    }
    if (writer == by_hash.end()) {
      candidate.part.box.name = own_name(group.rank(), candidate.part.box.name);
    }
    kept.push_back(std::move(candidate));
  }
  own = std::move(kept);
  return replicas;
}

const SavedBox& saved_box(const CheckpointIndex& index, const ShardTensor& part) {
  const auto& boxes = index.tensors.at(part.box.name).boxes;
  const auto found = std::ranges::find(boxes, part.box, &SavedBox::box);
  TROIKA_CHECK(found != boxes.end(), part.box.text() + " was written by no rank");
  return *found;
}

}  // namespace

RankShard shard_of(const comm::Group& group, const RankState& state,
                   const std::set<PlaceHash>& compared) {
  const bool is_main = group.rank() == 0;
  auto own = candidates(state, is_main);
  RankShard shard;
  if (group.size() > 1) shard.replicas = keep_shard(group, own, compared);
  ShardFile weights{.name = kWeightsFile, .parts = {}};
  ShardFile rest{.name = rank_file(group.rank()), .parts = {}};
  for (auto& [part, item] : own) {
    (item.kind == Kind::weights ? weights : rest).parts.push_back(std::move(part));
  }
  if (is_main) shard.files.push_back(std::move(weights));
  shard.files.push_back(std::move(rest));
  return shard;
}

std::set<PlaceHash> differing_places(const comm::Group& group, const CheckpointIndex& index,
                                     const std::vector<ShardTensor>& replicas,
                                     const std::vector<std::vector<uint32_t>>& checksums) {
  std::vector<PlaceHash> own;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (saved_box(index, replicas[i]).crc32c != checksums[i]) own.push_back(place_of(replicas[i]));
  }
  std::set<PlaceHash> result;
  for (const auto& list : gather_lists(group, own)) result.insert(list.begin(), list.end());
  return result;
}

void add_written(CheckpointIndex& index, const ShardFile& file, const FileDigest& digest) {
  index.files[file.name] = {digest.bytes, digest.header};
  for (size_t i = 0; i < file.parts.size(); ++i) {
    const ShardTensor& part = file.parts[i];
    auto& tensor = index.tensors[part.box.name];
    tensor.dtype = *dtype_name(part.tensor.scalar_type());
    tensor.shape = part.box.shape;
    tensor.boxes.push_back(
        {.file = file.name, .key = part.key, .box = part.box, .crc32c = digest.tensors[i]});
  }
}

}  // namespace troika::checkpoint
