module github.com/meshnet/node

go 1.26
