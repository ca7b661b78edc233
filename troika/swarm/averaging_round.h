// One averaging at one of its members. Internal to the room.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troika/swarm/averaging.h"
#include "troika/swarm/averaging_wire.h"
#include "troika/swarm/far_contributors.h"
#include "troika/swarm/part_reducer.h"

namespace troika::swarm {

// Without the type of its numbers.
class AveragingRound {
 public:
  virtual ~AveragingRound() = default;
  virtual void begin() = 0;
  virtual void take(const std::string& peer, const AveragingHead& head,
                    std::string_view numbers) = 0;
  virtual void lose(const std::string& peer, const std::string& why) = 0;
  virtual void cancel() = 0;
};

template <typename Number>
class TypedRound : public AveragingRound, public std::enable_shared_from_this<TypedRound<Number>> {
 public:
  using Values = std::shared_ptr<std::vector<Number>>;

  TypedRound(net::Endpoint& endpoint, AveragingGroup group, Values values, double weight,
             AveragingOptions<Number> options, std::function<void(const AveragingResult&)> done);

  void begin() override;
  void take(const std::string& peer, const AveragingHead& head, std::string_view numbers) override;
  void lose(const std::string& peer, const std::string& why) override;
  void cancel() override;

 private:
  // The chunks that this peer sends to a reducer, and gets from it.
  struct Gathering {
    size_t part = 0;  // index of the result's part
    std::deque<Chunk> to_send = {};
    std::map<size_t, size_t> missing = {};  // first number -> count
    bool is_ready = false;
    size_t in_flight = 0;  // chunks
    net::Duration heard{};
  };

  bool contributes() const;
  size_t index_of(const std::string& peer) const;
  void begin_reducing(size_t first);
  void begin_gathering(size_t index, size_t first);
  void take_part(size_t index, const AveragingHead& head, std::string_view numbers);
  void take_averaged(Gathering& gathering, const AveragingHead& head, std::string_view numbers);
  void send_more(size_t index);
  void send_reduced(const Chunk& chunk, const std::vector<Number>* average, double weight,
                    const std::map<size_t, typename PartReducer<Number>::Contribution>& from);
  // A head, and numbers that have been packed.
  using Message = std::shared_ptr<const std::string>;

  Message message_of(AveragingHead head, std::span<const Number> numbers) const;
  void send(size_t index, const Message& message, net::Completion completion = {});
  std::vector<Number> unpacked(const AveragingHead& head, std::string_view bytes) const;
  // The numbers as others get them.
  std::vector<Number> as_received(const Chunk& chunk, std::vector<Number> numbers) const;
  void write(const Chunk& chunk, std::span<const Number> numbers, double weight, size_t part);
  void note_weight(double weight);
  void exclude(size_t index, const std::string& why, bool tells);
  void end_gathering(size_t index, const std::string& problem);
  void check_times();
  void end_if_done();
  void end();

  net::Endpoint& endpoint_;
  const AveragingGroup group_;
  const Values values_;
  const double weight_;
  AveragingOptions<Number> options_;
  std::function<void(const AveragingResult&)> done_;
  size_t own_ = 0;  // index of this member
  AveragingResult result_;
  std::unique_ptr<PartReducer<Number>> reducer_;  // null: this peer reduces nothing
  std::map<size_t, net::Duration> heard_;         // contributors to this peer's part
  std::map<size_t, Gathering> gatherings_;        // by reducer, until they have ended
  FarContributors<Number> far_;
};

}  // namespace troika::swarm
