// Peers that others have found to lie.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "troika/swarm/averaging.h"
#include "troika/swarm/directory.h"

namespace troika::swarm {

// The kind of the records in which peers accuse others. The sub-key is the peer that is accused.
inline constexpr const char* kAccusation = "accusation";
// Whether such a record is valid (RecordRules::kinds).
bool is_accusation(const Record& record);

// A peer accuses another one that sends it numbers that are not finite, or, with
// Aggregation::centred_clip, numbers that are far from those of the others in three averages in a
// row. A peer is banned while more than half of the others accuse it. An accusation lasts ten
// minutes.
class Bans {
 public:
  // The directory must outlive it.
  Bans(Directory& directory, std::string own_name)
      : directory_(directory), own_name_(std::move(own_name)) {}

  // To be called for each change of the directory.
  void take_change(const Record& record);
  // Accuses the members that lied in an average that this peer has ended.
  void judge(const AveragingResult& result);
  // The banned ones, if these peers, of which this one may be one, have a voice.
  std::set<std::string> banned_by(const std::set<std::string>& voters) const;
  // How many peers accuse this one.
  size_t accusers_of(const std::string& peer) const;

 private:
  void accuse(const std::string& peer, const std::string& why);

  Directory& directory_;
  const std::string own_name_;
  std::map<std::string, int> strikes_;  // averages in a row in which a peer's numbers were far
  // Accused peer -> who accuses it, until when.
  std::map<std::string, std::map<std::string, WallTime>> accusers_;
};

}  // namespace troika::swarm
