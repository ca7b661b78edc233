// Update rules: how a server applies the values that workers push. A rule is a function that is
// applied to one segment, the values of one key, at a time (Li et al., OSDI 2014, section 3.3,
// "user-defined functions on the server").
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troika::server {

// The values of one key while a push is applied to them.
template <typename T>
struct Segment {
  std::span<T> values;
  // Update::states times values.size() numbers: one state after the other, each as long as
  // `values`. All 0 before the first update.
  std::span<T> state;
  std::span<const T> pushed;  // as long as `values`
  uint64_t updates = 1;       // number of updates of the segment, including this one
  // The learning rate that came with the push (CallOptions::rate); none: that of the rule.
  std::optional<double> rate = {};
};

// An update rule for both types of values. The functions are called for one segment at a time, by
// one thread; they must not block or throw, and must depend only on the segment, because copies of
// the values apply the same pushes.
struct Update {
  int states = 0;  // numbers of state per value
  // Whether a run of segments may be passed as one segment. Only for rules without state that do
  // not read Segment::updates.
  bool merges = false;
  std::function<void(const Segment<float>&)> apply32;
  std::function<void(const Segment<double>&)> apply64;
};

enum class UpdateKind : uint8_t {
  sum,          // w += g
  sgd,          // w -= rate * g
  momentum,     // v = momentum * v + g; w -= rate * v, or with nesterov rate * (g + momentum * v)
  adagrad,      // s += g^2; w -= rate * g / (sqrt(s) + epsilon)
  adam,         // Kingma and Ba, ICLR 2015, algorithm 1
  adamw,        // Loshchilov and Hutter, ICLR 2019, algorithm 2
  proximal_l1,  // u = w - rate * g; w = sign(u) * max(|u| - rate * l1, 0)
  user,         // the server's function of the name UpdateSpec::user
};

// An update rule as data. The formulas and names are PyTorch's. Every push is multiplied by `scale`
// before the rule sees it. Weight decay is part of the gradient, g += weight_decay * w, except that
// adamw shrinks the weights, w *= 1 - rate * weight_decay.
struct UpdateSpec {
  UpdateKind kind = UpdateKind::sum;
  double scale = 1;
  double rate = 0.01;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // sgd, momentum, adagrad, adam, adamw
  double nesterov = 0;      // 1: Nesterov's momentum; 0: not
  double l1 = 0;
  std::string user = {};  // a word; only for UpdateKind::user

  bool operator==(const UpdateSpec&) const = default;
};

// The numbers of state per value that a rule keeps, and whether it can be known without the server:
// nullopt for UpdateKind::user.
std::optional<int> states_of(const UpdateSpec& spec);

// Returns words such as `adam rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08`: the kind and the
// numbers that it uses; weight_decay, nesterov and scale only if they are not their defaults.
std::string to_text(const UpdateSpec& spec);
// The inverse of to_text(); absent numbers have their defaults. Throws Error(server, usage) for an
// unknown word or a number that does not parse.
UpdateSpec parse_update(std::string_view text);

// The user's functions of a server, by name.
using UserUpdates = std::map<std::string, Update>;
// Returns the rule. Throws Error(server, usage) if it is a user's function that `user` does not
// have.
Update make_update(const UpdateSpec& spec, const UserUpdates& user);

}  // namespace troika::server
