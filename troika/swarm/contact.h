// Peers tell how others can connect to them, and what they train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/net/dial.h"
#include "troika/net/requests.h"
#include "troika/swarm/record.h"

namespace troika::swarm {

// The kind of the records with contacts.
inline constexpr const char* kContact = "contact";

struct Contact {
  std::vector<net::Address> addresses = {};  // empty: it cannot be reached
  std::string schema = {};                   // PeerOptions::schema
  std::string model = {};                    // the same for people
  int64_t target_batch = 0;                  // samples
};

std::string text_of(const Contact& contact);
// Throws Error(swarm, failure) for texts that text_of() did not return.
Contact contact_from(std::string_view text);
// Whether the body of such a record is valid (RecordRules::kinds).
bool is_contact(const Record& record);

// The name under which all peers, and authorities, may be connected to by those that do not know
// their own name (net::TcpOptions::alias).
inline constexpr const char* kDoorName = "swarm";
// Uses this channel and the next one.
inline constexpr net::Channel kDoors = 0x5351'0008;

// Tells the name of an endpoint, and the run, to those that connected under kDoorName. Construct
// and destroy it under Endpoint's rules for callbacks.
class Door {
 public:
  // `endpoint` must outlive it.
  Door(net::Endpoint& endpoint, std::string run);

 private:
  net::Requests requests_;
};

// A door tells this.
struct DoorSign {
  std::string name;
  std::string run;
};
// Throws Error(swarm, failure) for other texts than those of a Door.
DoorSign sign_from(std::string_view text);

}  // namespace troika::swarm
