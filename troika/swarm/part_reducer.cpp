#include "troika/swarm/part_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troika::swarm {

std::vector<Chunk> chunks_of(size_t first, size_t count, size_t number_bytes) {
  const size_t most = (size_t{512} << 10) / number_bytes;
  std::vector<Chunk> chunks;
  for (size_t done = 0; done < count; done += most) {
    chunks.push_back({first + done, std::min(most, count - done)});
  }
  return chunks;
}

template <typename Number>
PartReducer<Number>::PartReducer(std::vector<Chunk> chunks, std::vector<size_t> contributors,
                                 Reduced reduced)
    : reduced_(std::move(reduced)) {
  for (const auto& chunk : chunks) open_[chunk.first] = {chunk};
  for (const size_t contributor : contributors) weights_[contributor] = -1;
}

template <typename Number>
std::optional<std::string> PartReducer<Number>::add(size_t contributor, const Chunk& chunk,
                                                    double weight, std::vector<Number> numbers) {
  const auto known = weights_.find(contributor);
  if (known == weights_.end()) return "it contributes nothing any more";
  const auto open = open_.find(chunk.first);
  if (open == open_.end() || open->second.chunk.count != chunk.count ||
      open->second.contributions.contains(contributor)) {
    return fmt::format("its numbers [{}, {}) are not expected", chunk.first,
                       chunk.first + chunk.count);
  }
  if (!std::isfinite(weight) || weight < 0 || (known->second >= 0 && known->second != weight)) {
    return fmt::format("its weight is {}", weight);
  }
  if (!std::ranges::all_of(numbers, [](Number number) { return std::isfinite(number); })) {
    return "it sent numbers that are not finite";
  }
  known->second = weight;
  open->second.contributions[contributor] = {weight, std::move(numbers)};
  reduce_if_complete(chunk.first);
  return std::nullopt;
}

template <typename Number>
void PartReducer<Number>::exclude(size_t contributor) {
  if (weights_.erase(contributor) == 0) return;
  std::vector<size_t> firsts;
  for (auto& [first, open] : open_) {
    open.contributions.erase(contributor);
    firsts.push_back(first);
  }
  for (const size_t first : firsts) reduce_if_complete(first);
}

template <typename Number>
bool PartReducer<Number>::waits_for(size_t contributor) const {
  return weights_.contains(contributor) && std::ranges::any_of(open_, [&](const auto& open) {
           return !open.second.contributions.contains(contributor);
         });
}

template <typename Number>
void PartReducer<Number>::reduce_if_complete(size_t first) {
  const auto found = open_.find(first);
  if (found->second.contributions.size() < weights_.size()) return;
  const auto open = std::move(open_.extract(found).mapped());
  double weight = 0;
  std::vector<double> sums(open.chunk.count);
  for (const auto& [contributor, one] : open.contributions) {
    weight += one.weight;
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += one.weight * static_cast<double>(one.numbers[i]);
    }
  }
  if (weight == 0) return reduced_(open.chunk, nullptr, 0, open.contributions);
  std::vector<Number> average(sums.size());
  std::ranges::transform(sums, average.begin(),
                         [&](double sum) { return static_cast<Number>(sum / weight); });
  reduced_(open.chunk, &average, weight, open.contributions);
}

template class PartReducer<float>;
template class PartReducer<double>;

}  // namespace troika::swarm
