package main

import (
	"slices"

	"github.com/meshnet/node/schemas"
)

// channel is a subject, or a key of a bucket, with what travels on it.
type channel struct {
	id, address, description string
	parameters               []string
	messages                 []string
}

var channels = []channel{
	{"requests", "mesh.v1.req.{model}.{lane}.{tenant}", "Requests of a tenant, kept in stream MESH_REQ until their turns are done.",
		[]string{"model", "lane", "tenant"}, []string{"Request"}},
	{"events", "mesh.v1.tok.{tenant}.{session}.{turn}", "Events of a turn, in order, kept in stream MESH_TOK for 15 minutes.",
		[]string{"tenant", "session", "turn"}, []string{"Started", "Tokens", "Keepalive", "Final"}},
	{"control", "mesh.v1.ctl.{tenant}.{session}.{turn}", "Hints to the owner of a turn; not kept.",
		[]string{"tenant", "session", "turn"}, []string{"Control"}},
	{"turns", "mesh.v1.turn.{tenant}", "Questions about a turn, and its cancellation; any worker answers.",
		[]string{"tenant"}, []string{"TurnRequest"}},
	{"turnReplies", "", "Where the asker of a turn request listens.", nil, []string{"TurnReply"}},
	{"capabilities", "mesh.v1.cap.{node}", "What a node serves and how loaded it is, once a second and on change.",
		[]string{"node"}, []string{"Advertisement"}},
	{"nodes", "mesh.v1.node.{node}.{verb}", "What an operator asks of a node; the request has no payload.",
		[]string{"node", "verb"}, []string{"NodeRequest"}},
	{"nodeReplies", "", "Where the operator listens.", nil, []string{"NodeReply"}},
	{"work", "mesh.v1.work.{tenant}.{node}.{session}.{turn}", "One record for each turn that was claimed, kept in stream MESH_WORK for 30 days.",
		[]string{"tenant", "node", "session", "turn"}, []string{"WorkRecord"}},
	{"ledger", "$KV.MESH_TURNS.{tenant}.{session}.{turn}", "The compare-and-swap register of a turn: what it holds decides. Between workers only.",
		[]string{"tenant", "session", "turn"}, []string{"LedgerRecord"}},
	{"liveNodes", "$KV.MESH_NODES.{node}", "The last advertisement of each live node, for those who come later; entries expire after 15 seconds.",
		[]string{"node"}, []string{"Advertisement"}},
}

// operation is what a worker does with a channel.
type operation struct{ id, action, channel, summary, reply string }

var operations = []operation{
	{"takeRequests", "receive", "requests", "Pull exactly what can be finished; acknowledge when the ledger says done.", ""},
	{"moveRequest", "send", "requests", "Publish a copy to another lane, with the Mesh- headers.", ""},
	{"publishEvents", "send", "events", "Stream the tokens, and tell the end from the ledger's bytes.", ""},
	{"hearControl", "receive", "control", "Note a heartbeat; read the ledger when poked.", ""},
	{"pokeOwner", "send", "control", "Tell the owner of a turn that it was cancelled.", ""},
	{"answerTurn", "receive", "turns", "Cancel a turn, or say where it stands.", "turnReplies"},
	{"advertise", "send", "capabilities", "Tell what is served and how loaded it is.", ""},
	{"keepAlive", "send", "liveNodes", "Keep the node's entry from expiring.", ""},
	{"answerNode", "receive", "nodes", "Tell status or sessions, drain or take work again.", "nodeReplies"},
	{"recordWork", "send", "work", "Tell accounting what was done.", ""},
	{"swapLedger", "send", "ledger", "Claim a turn, take it over, mark it cancelled, or end it, by compare-and-swap.", ""},
}

// parameters describe the words of an address.
var parameters = map[string]string{
	"model":   "Name of a model: 1 to 64 of A-Z a-z 0-9 _ -.",
	"lane":    "any, or the node whose lane it is.",
	"tenant":  "Name of a tenant: 1 to 64 of A-Z a-z 0-9 _ -.",
	"session": "Name of a session: 1 to 64 of A-Z a-z 0-9 _ -.",
	"turn":    "Number of a turn, in decimal, without leading zeros.",
	"node":    "Id of a node: 1 to 64 of A-Z a-z 0-9 _ -, but not any.",
	"verb":    "What is asked.",
}

func asyncAPI(c comments) object {
	return object{
		{"asyncapi", "3.0.0"},
		{"info", object{
			{"title", "Meshnet worker"},
			{"version", "1.0.0"},
			{"description", "The subjects and messages of an inference mesh on NATS, from the worker's point of view. Payloads are msgpack maps; " +
				"their schemas are written for the JSON form of the same fields. The prefix mesh.v1 is configurable."},
			{"license", object{{"name", "Apache-2.0"}}},
		}},
		{"defaultContentType", "application/msgpack"},
		{"channels", asyncChannels()},
		{"operations", asyncOperations()},
		{"components", object{{"messages", asyncMessages(c)}}},
	}
}

func asyncChannels() object {
	var all object
	for _, ch := range channels {
		var address any
		if ch.address != "" {
			address = ch.address
		}
		o := object{{"address", address}, {"description", ch.description}}
		var refs, params object
		for _, m := range ch.messages {
			refs = append(refs, member{m, ref("#/components/messages/" + m)})
		}
		o = append(o, member{"messages", refs})
		for _, p := range ch.parameters {
			param := object{{"description", parameters[p]}}
			if p == "verb" {
				param = append(param, member{"enum", schemas.NodeVerbs()})
			}
			params = append(params, member{p, param})
		}
		if params != nil {
			o = append(o, member{"parameters", params})
		}
		all = append(all, member{ch.id, o})
	}
	return all
}

func asyncOperations() object {
	var all object
	for _, op := range operations {
		o := object{{"action", op.action}, {"channel", ref("#/channels/" + op.channel)}, {"summary", op.summary}}
		if op.reply != "" {
			o = append(o, member{"reply", object{{"channel", ref("#/channels/" + op.reply)}}})
		}
		all = append(all, member{op.id, o})
	}
	return all
}

func asyncMessages(c comments) object {
	var all object
	for _, ch := range channels {
		for _, name := range ch.messages {
			if slices.ContainsFunc(all, func(m member) bool { return m.name == name }) {
				continue
			}
			o := object{{"name", name}, {"summary", c[name]}}
			if name == "NodeRequest" {
				o = object{{"name", name}, {"summary", "An empty payload."}}
			} else {
				o = append(o, member{"payload", ref("./" + name + ".json")})
			}
			if name == "Request" {
				o = append(o, member{"headers", requestHeaders()})
			}
			all = append(all, member{name, o})
		}
	}
	return all
}

func requestHeaders() object {
	header := func(text, pattern string) object {
		return object{{"type", "string"}, {"description", text}, {"pattern", pattern}}
	}
	return object{{"type", "object"}, {"properties", object{
		{"Nats-Msg-Id", header("tenant/session/turn/nonce, on a client's own publish; a move or copy has none.", "^[^/]+/[^/]+/[0-9]+/[^/]+$")},
		{schemas.HeaderFrom, header("Of a move: stream sequences of the copies before this one, oldest first.", "^[1-9][0-9]*(,[1-9][0-9]*)*$")},
		{schemas.HeaderBorn, header("Of a move or copy: stream timestamp of the first copy, Unix milliseconds.", "^[1-9][0-9]*$")},
		{schemas.HeaderHops, header("Of a move: how often it was moved.", "^[1-9][0-9]*$")},
		{schemas.HeaderFit, header("Of a move: it fits only this lane.", "^1$")},
		{schemas.HeaderTwin, header("Of a copy: stream sequence of the request that waits on in its lane, and goes once the turn is done.", "^[1-9][0-9]*$")},
	}}}
}

func ref(to string) object { return object{{"$ref", to}} }
