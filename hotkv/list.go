package hotkv

// list keeps its members in order of use. It is intrusive: a member brings its own link, so a member
// can be in several lists and nothing is allocated. Whoever owns the list serialises its use.
type list[T any] struct {
	root link[T] // a ring: root.newer is the oldest member, root.older the newest
}

// link is one membership of owner in one list.
type link[T any] struct {
	older, newer *link[T]
	owner        *T // nil in a list's root
}

func (l *list[T]) init() { l.root.older, l.root.newer = &l.root, &l.root }

// add makes n's owner the newest member.
func (l *list[T]) add(n *link[T], owner *T) {
	newest := l.root.older
	n.older, n.newer, n.owner = newest, &l.root, owner
	newest.newer, l.root.older = n, n
}

// remove takes out n, which must be in l.
func (l *list[T]) remove(n *link[T]) {
	n.older.newer, n.newer.older = n.newer, n.older
}

// oldest is the least recently used member, nil if there is none.
func (l *list[T]) oldest() *T { return l.root.newer.owner }
